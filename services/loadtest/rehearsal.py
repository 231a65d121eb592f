"""Before the load: whether the server is there, what its model is called, and whether it answers as it should."""

from __future__ import annotations

import httpx

from services.loadtest.clock import Clock
from services.loadtest.deployment.route import client
from services.loadtest.options import Options
from services.loadtest.run import Record
from services.loadtest.traffic.exchange import Exchange
from services.loadtest.traffic.questions import Questions

_REHEARSED = 24  # requests
_PATIENCE = 30.0  # seconds that each of them may take


class CannotRun(RuntimeError):
    """The load test could not be run; the message says why."""


def model_of(url: str, api_key: str | None) -> str:
    """The name of a server's model: the first of ``/v1/models``.

    Raises:
        CannotRun: it does not say.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with client(timeout=10) as http:
            answer = http.get(f"{url}/v1/models", headers=headers)
        return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise CannotRun(
            f"{url}/v1/models names no model ({type(error).__name__}: {error}): is it an OpenAI-compatible server, and up? "
            "--model gives the name instead"
        ) from error


def rehearse(options: Options, url: str, model: str) -> None:
    """Asks some of each kind, one after the other: what happens but once is not part of the calm.

    Raises:
        CannotRun: the server does not answer as it should even before anything is done to it.
    """
    traffic = options.scenario.traffic
    exchange = Exchange(url, Clock(), 1.0, api_key=options.api_key)
    questions = Questions(traffic.model_copy(update={"hang_up": 0.0}), model, options.semantics, options.seed)
    records: list[Record] = []
    try:
        for number in range(_REHEARSED):
            record, _ = exchange.ask(questions.next(), f"lt-rehearsal-{number}", max(traffic.deadline, _PATIENCE), 0.0)
            if not record.ok:
                raise CannotRun(f"before the load began, a request ({record.kind}) was answered {_said(record)}")
            records.append(record)
    finally:
        exchange.close()
    wrong = [record for record in records if record.right is False]
    # Some may be the server's fault, which is to be judged. If most are, it has not the model that the answers are of.
    if 2 * len(wrong) > len(records):
        raise CannotRun(
            f"before the load began, {wrong[0].said!r} was answered where {wrong[0].expected!r} is right, and so on: for other "
            "models than the demo model, --no-semantics judges no answers"
        )


def _said(record: Record) -> str:
    return " ".join(filter(None, (str(record.status or ""), record.code, record.detail))) or str(record.end)
