"""Many requests at once, each about a picture of its own whose right answer is known."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from benchmarks.transport import LeanTransport
from examples.scenes import COLOUR_NAMES, ORDINALS, POSITIONS, SHAPES, TALK, Scene, Thing, describe, png
from tests.chats import Undivided, user

CLIENT_TIMEOUT = 60.0


@dataclass(frozen=True)
class Case:
    """A request body and the one right answer; no two cases of ``cases`` share an answer."""

    body: bytes
    answer: str


@dataclass(frozen=True)
class Outcome:
    """What came of a request. ``code`` is the error's, or ``ok``; ``ended`` is on the clock of ``time.monotonic``."""

    case: Case
    status: int
    code: str
    text: str
    began: float
    ended: float
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def wrong(self) -> bool:
        """Answered, but not about its own picture."""
        return self.status == 200 and self.text != self.case.answer


def cases(undivided: Undivided, number: int = 64, **request: object) -> list[Case]:
    """Different pictures of one thing each, that the undivided model describes as they are."""
    found: list[Case] = []
    for index in range(_SINGLES):
        if len(found) == number:
            return found
        found += right_ones(undivided, [picture(index), "Describe the picture."], single(index), **request)
    raise AssertionError(f"the model describes only {len(found)} of these pictures")


def pairs(undivided: Undivided, number: int = 64, **request: object) -> list[Case]:
    """The same about one picture of two, so that an exchange of the two shows."""
    found: list[Case] = []
    for index in range(_SINGLES):
        if len(found) == number:
            return found
        which, other = index % 2, (index + 37) % _SINGLES
        shown = [picture(other), picture(other)]
        shown[which] = picture(index)
        found += right_ones(undivided, [*shown, f"Describe the {ORDINALS[which]} picture."], single(index), **request)
    raise AssertionError(f"the model describes only {len(found)} of these pairs")


_SINGLES = len(COLOUR_NAMES) * len(SHAPES) * len(POSITIONS)


def single(index: int) -> Scene:
    """The scene of one thing with this number."""
    return Scene((Thing(index % 8, index // 8 % 4, index // 32),))


def picture(index: int) -> bytes:
    """Its picture; the same one always."""
    return png(single(index), size=64, seed=index)


def right_ones(undivided: Undivided, parts: list[bytes | str], scene: Scene, **request: object) -> list[Case]:
    """The case, if the undivided model answers it as it should."""
    text = undivided.tokenizer.decode(undivided.answer(parts)[1], skip_special_tokens=True)
    right = describe(scene)
    return [Case(json.dumps(user(*parts, max_tokens=32, **request)).encode(), right)] if text == right else []


def text_case(text: str = "Hello!") -> Case:
    """A request without a picture."""
    return Case(json.dumps(user(text)).encode(), TALK[text])


async def ask(client: httpx.AsyncClient, url: str, case: Case, headers: Mapping[str, str] | None = None) -> Outcome:
    """Sends one request; a connection that breaks is the code ``no answer``."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT):
            sent = {"content-type": "application/json", **(headers or {})}
            response = await client.post(f"{url}/v1/chat/completions", content=case.body, headers=sent)
    except (httpx.HTTPError, TimeoutError, OSError) as error:
        return Outcome(case, 0, f"no answer ({type(error).__name__})", "", began, time.monotonic())
    ended = time.monotonic()
    body = json.loads(response.content)
    if response.status_code == 200:
        return Outcome(case, 200, "ok", body["choices"][0]["message"]["content"], began, ended)
    return Outcome(case, response.status_code, body["error"]["code"], "", began, ended, dict(response.headers))


async def ask_all(
    url: str, wanted: Sequence[Case], concurrency: int = 10**6, headers: Mapping[str, str] | None = None
) -> list[Outcome]:
    """Sends all, no more than ``concurrency`` at a time, and returns when each was answered."""
    waiting = iter(wanted)
    outcomes: list[Outcome] = []

    async def worker(client: httpx.AsyncClient) -> None:
        for case in waiting:
            outcomes.append(await ask(client, url, case, headers))

    async with httpx.AsyncClient(transport=LeanTransport()) as client, asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(wanted))):
            group.create_task(worker(client))
    return outcomes


def codes(outcomes: Iterable[Outcome]) -> Counter[str]:
    return Counter(outcome.code for outcome in outcomes)


def check(outcomes: Sequence[Outcome], asked: int, allowed: set[str]) -> None:
    """Each request has exactly one answer, each 200 is right, each 503 has its code and says when to come back."""
    assert len(outcomes) == asked
    found = codes(outcomes)
    assert set(found) <= {"ok", *allowed}, found
    assert [outcome for outcome in outcomes if outcome.wrong] == []
    for outcome in outcomes:
        assert outcome.status in (200, 503)
        assert outcome.status == 200 or int(outcome.headers["retry-after"]) >= 1


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile; ``share`` is in 0..1."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
