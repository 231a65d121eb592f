"""Each fault has its code, fails nobody else's request, and is forgotten as soon as it is cleared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.transport import LeanTransport
from tests.chaos.fleet import Fleet, fleet, metrics
from tests.chats import user
from tests.load import Case, Outcome, ask, ask_all, check, text_case

LIVENESS = 1.0
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "crash before fetch": ({"kind": "crash", "at": "fetch"}, "encoder_failed"),
    "crash after hash": ({"kind": "crash", "at": "hash"}, "encoder_failed"),
    "crash in the middle of publishing": ({"kind": "crash", "at": "publish"}, "encoder_failed"),
    "hang": ({"kind": "hang"}, "encoder_lost"),
    "hang when publishing": ({"kind": "hang", "at": "publish"}, "encoder_lost"),
    "delay": ({"kind": "delay", "seconds": 10}, "embedding_timeout"),
    "error 500": ({"kind": "error"}, "encoder_failed"),
    "error 404": ({"kind": "error", "status": 404}, "encoder_failed"),
    "overload": ({"kind": "overload", "retry_after": 3}, "encoder_overloaded"),
    "drop": ({"kind": "drop"}, "embedding_incomplete"),
    "partial": ({"kind": "partial", "k": 1}, "embedding_incomplete"),
    "late": ({"kind": "late", "seconds": 1}, "embedding_incomplete"),
    "slow drip": ({"kind": "slow_drip", "seconds": 5}, "embedding_timeout"),
    "corrupt": ({"kind": "corrupt", "bits": 1}, "embedding_corrupt"),
    "wrong shape": ({"kind": "wrong_shape"}, "embedding_incompatible"),
    "wrong tokens": ({"kind": "wrong_tokens"}, "embedding_incompatible"),
    "not a number": ({"kind": "nan"}, "embedding_incompatible"),
    "infinite": ({"kind": "nan", "value": "inf"}, "embedding_incompatible"),
    "wrong dtype": ({"kind": "wrong_dtype", "dtype": "int32"}, "embedding_incompatible"),
    "wrong fingerprint": ({"kind": "wrong_fingerprint"}, "embedding_incompatible"),
}
HARMLESS: dict[str, dict[str, Any]] = {
    "duplicate": {"kind": "duplicate"},
    "reorder": {"kind": "reorder"},
}
VICTIM = {"x-epd-victim": "yes"}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    options = {"liveness_timeout": LIVENESS, "embedding_timeout": 1.5, "arrival_grace": 0.3, "breaker_failures": 3}
    folder: Path = tmp_path_factory.mktemp("faults")
    with fleet(folder, encoder={"faults_enabled": True}, language=options) as running:
        yield running


@pytest.fixture(autouse=True)
def cleared(services: Fleet) -> Iterator[None]:
    yield
    services.set_faults()
    services.until_ready()


def one(services: Fleet, case: Case, headers: dict[str, str] | None = None) -> Outcome:
    [outcome] = asyncio.run(ask_all(services.language.url, [case], headers=headers))
    return outcome


def until_served(services: Fleet, case: Case) -> Outcome:
    async def ask_again() -> Outcome:
        async with httpx.AsyncClient(transport=LeanTransport()) as client, asyncio.timeout(30):
            while True:
                outcome = await ask(client, services.language.url, case)
                if outcome.status == 200:
                    return outcome
                await asyncio.sleep(0.02)

    return asyncio.run(ask_again())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_code_and_leaves_no_trace(services: Fleet, doubles: list[Case], singles: list[Case], name: str) -> None:
    fault, code = FAULTS[name]
    services.set_faults(fault)
    outcome = one(services, doubles[0])
    assert (outcome.status, outcome.code) == (503, code)
    # Again and again: the circuit may open, and then nobody is asked; text does not notice.
    check(asyncio.run(ask_all(services.language.url, singles[:5])), 5, {code, "encoder_unavailable"})
    assert one(services, text_case()).status == 200
    if fault["kind"] == "crash":
        services.encoders[0].process.wait(5)
        services.encoders[0].start()
    services.set_faults()
    clear = time.monotonic()
    served = until_served(services, singles[1])
    assert not served.wrong
    assert served.ended - clear <= 2 * LIVENESS


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_fault_is_harmless(services: Fleet, doubles: list[Case], name: str) -> None:
    services.set_faults(HARMLESS[name])
    outcomes = asyncio.run(ask_all(services.language.url, doubles[:20]))
    check(outcomes, 20, set())
    assert {outcome.status for outcome in outcomes} == {200}


def test_a_bad_item_fails_its_own_request_only(services: Fleet, singles: list[Case], doubles: list[Case]) -> None:
    """Streams that are under way go on, and so do requests that come beside the bad ones."""
    bad = ["wrong_tokens", "nan", "wrong_dtype", "wrong_shape", "corrupt"]

    async def stream(client: httpx.AsyncClient, began: asyncio.Event) -> list[str]:
        lines: list[str] = []
        body = user("Hello!", stream=True, max_tokens=400, ignore_eos=True)
        async with client.stream("POST", f"{services.language.url}/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                began.set()
        return lines

    async def scenario() -> None:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            began = asyncio.Event()
            streaming = asyncio.create_task(stream(client, began))
            await began.wait()
            for kind in bad:
                services.set_faults({"kind": kind, "match": {"headers": {"x-epd-victim": "*"}}})
                victims = asyncio.create_task(ask_all(services.language.url, doubles[:2], headers=VICTIM))
                others = await ask_all(services.language.url, singles[:10])
                check(others, 10, set())
                assert {outcome.code for outcome in await victims} <= {"embedding_incompatible", "embedding_corrupt"}
                # An honest answer between, since a row of failures would open the circuit.
                check(await ask_all(services.language.url, singles[:1]), 1, set())
            lines = await streaming
            assert lines[-2] == "data: [DONE]"
            assert sum(line.startswith("data: {") for line in lines) > 300

    asyncio.run(scenario())
    assert metrics(services.language)["epd_engine_running"] == 0


def test_a_sick_encoder_gets_one_request_and_not_all(services: Fleet, singles: list[Case]) -> None:
    services.set_faults({"kind": "hang"})
    first = asyncio.run(ask_all(services.language.url, singles[:8]))
    assert {outcome.code for outcome in first} == {"encoder_lost"}
    asked = f'epd_attempts_total{{code="encoder_lost",encoder="{services.encoders[0].url}"}}'
    before = metrics(services.language)[asked]
    over = time.monotonic() + 3 * LIVENESS
    outcomes: list[Outcome] = []
    while time.monotonic() < over:
        outcomes += asyncio.run(ask_all(services.language.url, singles[:8]))
    assert {outcome.code for outcome in outcomes} <= {"encoder_lost", "encoder_unavailable"}
    # In three times the liveness timeout, each probe takes one of them and half as long a pause.
    assert metrics(services.language)[asked] - before <= 3
    refused = [outcome.seconds for outcome in outcomes if outcome.code == "encoder_unavailable"]
    assert sorted(refused)[len(refused) // 2] < 0.1
