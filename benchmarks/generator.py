"""``python -m benchmarks.generator``: how many requests a second the load tester's generator makes, against a trivial server.

The server gives the same bytes to whatever it is asked. The floor of the same run: the same bytes sent and received over a
blocking socket, one request after the other. Server, generator and floor are a process each. ``--write PAGE`` puts the table
into a page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEAD = "HTTP/1.1 {}\r\ncontent-type: application/json\r\nx-request-id: benchmark\r\n{}content-length: {}\r\n\r\n"
ERROR = {"error": {"message": "No encoder is healthy.", "type": "server_error", "param": None, "code": "encoder_unavailable"}}
CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "demo_model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
}
ANSWERS = {
    "503": (HEAD.format("503 Service Unavailable", "retry-after: 1\r\n", "{}"), ERROR),
    "text": (HEAD.format("200 OK", "", "{}"), CHAT),
}
TARGET = 1000  # requests a second
LATE = 0.05  # seconds that the 99th percentile of an open loop may be late
USERS = 16
RATES = (1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000)  # of open loops, tried until one is not kept

TEXT = """\
`python -m benchmarks.generator`: `services/loadtest` in one process, against a server that gives the same bytes at once to
whatever it is asked. Closed loop: 16 users without pauses. Open loop: the highest rate of random arrivals tried of which the
99th percentile was sent within 50 ms of when it was due. Floor: the same bytes over a blocking socket, one request after the
other."""


@dataclass(frozen=True)
class Load:
    """What a generator did: requests a second, its share of a core, and how late the 99th percentile was, in seconds."""

    rate: float
    cpu: float
    late: float


def answer(name: str) -> bytes:
    """The bytes of an answer."""
    head, body = ANSWERS[name]
    raw = json.dumps(body, separators=(",", ":")).encode()
    return head.format(len(raw)).encode() + raw


# -------------------------------------------------------------------------------------------------------------- processes


class Trivial(asyncio.Protocol):
    """Counts bytes as far as the end of each request, and answers."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, _, rest = data.partition(b"\r\n\r\n")
            self._left = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            data = rest
        self._left -= len(data)
        if not self._left:
            self._transport.write(self._said)


async def serve(said: bytes) -> None:
    """The server: says its port and runs until it is ended."""
    server = await asyncio.get_running_loop().create_server(lambda: Trivial(said), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def generate(port: int, traffic: str, lasts: float) -> None:
    """The generator: prints what it did. Locust patches what is imported after it, so this has a process of its own."""
    import locust  # noqa: F401, I001
    from services.loadtest.scenario import Scenario
    from services.loadtest.traffic.loop import make_load_alone
    from services.loadtest.traffic.plan import Plan

    scenario = Scenario.model_validate({"name": "x", "title": "x", "lasts": lasts, "traffic": json.loads(traffic)})
    plan = Plan(scenario, f"http://127.0.0.1:{port}", "demo_model")
    make_load_alone(plan)
    assert plan.ledger.began is not None
    records = plan.ledger.records(plan.ledger.began)
    made = plan.ledger.generator()
    strange = [record for record in records if record.code not in ("ok", "encoder_unavailable")]
    assert not strange, strange[0]
    print(json.dumps({"rate": len(records) / lasts, "cpu": made.cpu, "late": made.late_p99 if not made.skipped else lasts}))


def bare(port: int, sent: bytes, length: int, lasts: float) -> float:
    """The floor: requests a second over one blocking socket."""
    number, began = 0, time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while time.perf_counter() < began + lasts:
            sock.sendall(sent)
            got = 0
            while got < length:
                got += len(sock.recv(1 << 16))
            number += 1
    return number / (time.perf_counter() - began)


# ------------------------------------------------------------------------------------------------------------ measurement


@contextlib.contextmanager
def server(name: str) -> Iterator[int]:
    """The port of a server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.generator", "--serve", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def load(port: int, lasts: float, **traffic: object) -> Load:
    """Runs a generator in a process of its own."""
    asked = json.dumps({**traffic, "mix": {"text": 1}, "streaming": 0})
    command = [sys.executable, "-m", "benchmarks.generator", "--generate", str(port), asked, "--seconds", str(lasts)]
    return Load(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]))


def highest(port: int, lasts: float) -> Load:
    """The highest rate of an open loop that is kept."""
    best = Load(0, 0, 0)
    for rate in RATES:
        found = load(port, lasts, rate=rate)
        if found.late >= LATE:
            break
        best = found
    return best


def request_bytes() -> bytes:
    """A request as long as the generator's."""
    body = json.dumps(
        {"model": "demo_model", "temperature": 0, "max_tokens": 32, "messages": [{"role": "user", "content": "Who are you?"}]}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8000\r\nuser-agent: epd-loadtest\r\n{'x-pad: ' + 'x' * 90}\r\n"
    )
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def rows(lasts: float) -> Iterator[tuple[str, ...]]:
    """The table's rows."""
    for name, what in (("503", "503, `encoder_unavailable`"), ("text", "a short text")):
        with server(name) as port:
            floor = bare(port, request_bytes(), len(answer(name)), lasts / 2)
            closed = load(port, lasts, users=USERS)
            kept = highest(port, lasts)
        for loop, found in (("closed loop", closed), ("open loop", kept)):
            met = "yes" if found.rate >= TARGET * 0.97 else "**no**"
            speed, ratio = f"{found.rate:.0f}/s", f"{found.rate / floor:.2f} x"
            yield what, loop, speed, ratio, f"{100 * found.cpu:.0f} %", f"{1000 * found.late:.1f} ms", f"≥ {TARGET}/s", met
        yield what, "floor: bare socket", f"{floor:.0f}/s", "1.00 x", "", "", "", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each measurement")
    parser.add_argument("--write", type=Path, help="page to write the table into, such as docs/performance.md")
    parser.add_argument("--serve", choices=ANSWERS, help=argparse.SUPPRESS)
    parser.add_argument("--generate", nargs=2, metavar=("PORT", "TRAFFIC"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve(answer(args.serve)))
    elif args.generate is not None:
        generate(int(args.generate[0]), args.generate[1], args.seconds)
    else:
        from benchmarks.pages import report  # these import torch, which is not for the processes above
        from benchmarks.tables import table

        heads = ("answer", "load", "requests", "of the floor", "core of the generator", "late, p99", "target", "met")
        report("Load generator", TEXT, table(heads, list(rows(args.seconds))), args.write)


if __name__ == "__main__":
    main()
