"""Hundreds of picture requests in one instant: each is answered, each 200 is right, and the services stay responsive."""

from __future__ import annotations

import asyncio
from itertools import cycle, islice
from pathlib import Path

import httpx
import pytest

from benchmarks.health import HealthSampler
from benchmarks.transport import LeanTransport
from tests.chaos.fleet import fleet, metrics
from tests.load import Case, Outcome, ask, ask_all, check, codes, percentile, text_case


async def texts_until(url: str, over: asyncio.Event) -> list[Outcome]:
    """Text requests, one after the other, until the surge is over."""
    outcomes: list[Outcome] = []
    async with httpx.AsyncClient(transport=LeanTransport()) as client:
        while not over.is_set():
            outcomes.append(await ask(client, url, text_case()))
    return outcomes


async def surge(url: str, wanted: list[Case]) -> tuple[list[Outcome], list[Outcome]]:
    """What came of ``wanted``, all sent at once, and of the texts beside them."""
    over = asyncio.Event()
    beside = asyncio.create_task(texts_until(url, over))
    outcomes = await ask_all(url, wanted)
    over.set()
    return outcomes, await beside


@pytest.mark.parametrize("number", [200, 1000])
def test_everyone_is_answered(tmp_path: Path, singles: list[Case], number: int) -> None:
    with fleet(tmp_path) as services:
        with HealthSampler(services.language.url) as language, HealthSampler(services.encoders[0].url) as encoder:
            outcomes, texts = asyncio.run(surge(services.language.url, list(islice(cycle(singles), number))))
        check(outcomes, number, {"encoder_overloaded", "engine_overloaded"})
        assert codes(outcomes)["ok"] >= min(number, 200)
        assert texts
        assert all((text.status, text.wrong) == (200, False) for text in texts)
        for latencies in (language.latencies, encoder.latencies):
            assert percentile(latencies, 0.99) <= 0.05, sorted(latencies)[-20:]
        counted = metrics(services.language)
        routes = [value for name, value in counted.items() if name.startswith("epd_requests_total{") and "chat" in name]
        assert sum(routes) == number + len(texts)
