"""Asks by ``Exchange`` what it reads from standard input, a JSON object a line, and prints the records.

A process of its own, since gevent patches what it touches. ``blind`` makes a client that does not see that the server closed an
idle connection.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import dataclasses  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402

from services.loadtest.clock import Clock  # noqa: E402
from services.loadtest.run import Kind  # noqa: E402
from services.loadtest.traffic.connections import Connections  # noqa: E402
from services.loadtest.traffic.exchange import Exchange  # noqa: E402
from services.loadtest.traffic.questions import Question  # noqa: E402


def main() -> None:
    clock, exchanges = Clock(), {}
    see = Connections._closed
    for line in sys.stdin:
        order = json.loads(line)
        url = order["url"]
        exchange = exchanges.setdefault(url, Exchange(url, clock, order["patience"], api_key=order["api_key"]))
        question = Question(Kind.TEXT, order["body"].encode(), order["expected"], True, order["streamed"], order["hang_up"])
        Connections._closed = (lambda *_: False) if order["blind"] else see  # type: ignore[method-assign]
        record, length = exchange.ask(question, order["id"], order["deadline"], clock.now())
        print(json.dumps({**dataclasses.asdict(record), "length": length}), flush=True)


if __name__ == "__main__":
    main()
