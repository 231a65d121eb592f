"""A fleet is updated, or loses a language service, while clients use it: what they see of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import httpx
import pytest

from benchmarks.transport import LeanTransport
from tests.chats import user
from tests.fleet.deployed import PATIENCE, UNCACHED, Deployed
from tests.load import Case, Outcome, ask, check, codes, text_case
from tests.processes import wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(900)]


@contextmanager
def clients(fleet: Deployed, wanted: list[Case], number: int = 3) -> Iterator[list[Outcome]]:
    """So many clients ask inside it, each again and again; what came of it. It is complete when the block has ended."""
    outcomes: list[Outcome] = []
    over = threading.Event()

    async def client(start: int) -> None:
        async with httpx.AsyncClient(transport=LeanTransport()) as http:
            for case in cycle([*wanted[start:], *wanted[:start]]):
                if over.is_set():
                    return
                outcomes.append(await ask(http, fleet.url, case))

    async def all_of_them() -> None:
        await asyncio.gather(*(client(start) for start in range(number)))

    thread = threading.Thread(target=lambda: asyncio.run(all_of_them()))
    thread.start()
    try:
        wait_for(lambda: len(outcomes) >= 2 * number, PATIENCE, "the first answers")
        yield outcomes
        asked = len(outcomes)
        wait_for(lambda: len(outcomes) >= asked + 2 * number, PATIENCE, "the last answers")
    finally:
        over.set()
        thread.join()


def test_a_rolling_update_loses_nothing(fleet: Deployed, singles: list[Case]) -> None:
    """Every replica of both kinds is replaced under load, and every request gets its answer."""
    with clients(fleet, [*singles, text_case()]) as outcomes:
        encoders = {"min_replicas": 2, "max_replicas": 2, "settings": {**UNCACHED, "max_items": 200}}
        fleet.deploy(encoders, {"settings": {**UNCACHED, "max_queue": 500}})
        fleet.until_updated(encoders=2, languages=1)
    print(f"rolling update: {len(outcomes)} requests, {codes(outcomes)['ok']} of them 200")
    check(outcomes, len(outcomes), set())
    assert codes(outcomes)["ok"] == len(outcomes)
    # An old one whose goodbye a new language service missed may be known as down for a while.
    assert {view["max_items"] for view in fleet.states().values() if view["state"] == "ready"} == {200}


@dataclass(frozen=True)
class Answer:
    """What a client got: a status, or 0 where the connection broke; times are of ``time.monotonic``."""

    streamed: bool
    status: int
    text: str
    began: float

    @property
    def whole(self) -> bool:
        return self.status == 200 and (not self.streamed or self.text.endswith("data: [DONE]\n\n"))


def answers_until(fleet: Deployed, over: threading.Event, streamed: bool, found: list[Answer]) -> None:
    """One client asks for long texts, again and again."""
    body = user("Hello!", max_tokens=150, ignore_eos=True, stream=streamed)
    with httpx.Client(timeout=60, trust_env=False) as http:
        while not over.is_set():
            began = time.monotonic()
            try:
                answer = http.post(f"{fleet.url}/v1/chat/completions", json=body)
                found.append(Answer(streamed, answer.status_code, answer.text, began))
            except httpx.RemoteProtocolError:
                found.append(Answer(streamed, 0, "", began))


def test_with_a_language_service_dies_what_it_was_answering_and_nothing_else(fleet: Deployed) -> None:
    """Nobody can save an answer whose engine is gone. The proxy says 500 in its own words, as the service cannot, or breaks the
    stream off; so clients know of it at once. What comes later is answered by the other one."""
    encoders = {"min_replicas": 2, "max_replicas": 2, "settings": UNCACHED}
    fleet.deploy(encoders, {"min_replicas": 2, "max_replicas": 2, "settings": UNCACHED})
    fleet.until_updated(encoders=2, languages=2)
    found: list[Answer] = []
    over = threading.Event()
    clients = [threading.Thread(target=answers_until, args=(fleet, over, bool(n % 2), found)) for n in range(6)]
    for client in clients:
        client.start()
    try:
        wait_for(lambda: len(found) >= 12, PATIENCE, "the first answers")
        victim = fleet.languages()[0]
        fleet.replicas.kill(victim)
        killed = time.monotonic()
        wait_for(lambda: sum(answer.began > killed for answer in found) >= 12, PATIENCE, "answers to what came later")
    finally:
        over.set()
        for client in clients:
            client.join()
    lost = [answer for answer in found if not answer.whole]
    print(f"a language service killed: {len(lost)} of {len(found)} answers lost, all of them under way")
    assert lost
    assert all(answer.began < killed for answer in lost)
    assert {(answer.streamed, answer.status, answer.text) for answer in lost} <= {
        (False, 500, "Internal Server Error"),
        (True, 0, ""),
    }
    # Serve brings another one, and the encoders find it.
    wait_for(lambda: len(fleet.languages()) == 2, PATIENCE, "another language service")
    assert victim.name not in {replica.name for replica in fleet.languages()}
    fleet.until_ready(2)
