"""Encoders die, stop or are paused under load: everyone is answered, in time and about their own picture."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.failures import CLIENTS, GONE, LIVENESS, SLOW, many, until_served, when_busy
from tests.chaos.fleet import Fleet, fleet, metrics
from tests.load import Case, Outcome, ask_all, check, codes, percentile, text_case
from tests.processes import Service, wait_for


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, encoders=2, encoder={"faults_enabled": True}, language={"liveness_timeout": LIVENESS}) as services:
        services.set_faults(SLOW)
        yield services


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, encoder={"faults_enabled": True}, language={"liveness_timeout": LIVENESS}) as services:
        services.set_faults(SLOW)
        yield services


def during(services: Fleet, wanted: list[Case], event: Callable[[], None]) -> list[Outcome]:
    """What came of ``wanted``; ``event`` happens when many are in the encoders' hands."""
    return asyncio.run(when_busy(services, wanted, event))[0]


def killing(*services: Service) -> Callable[[], None]:
    def kill() -> None:
        for service in services:
            service.process.kill()

    return kill


def test_one_of_two_is_killed(two: Fleet, singles: list[Case]) -> None:
    outcomes = during(two, many(singles, 300), killing(two.encoders[0]))
    check(outcomes, 300, GONE)
    # Deadlines are far away, so what the dead one had is done by the other.
    assert codes(outcomes)["ok"] == 300
    assert metrics(two.language)['epd_failover_total{code="encoder_failed"}'] >= CLIENTS // 4
    states = {url: view["state"] for url, view in two.states().items()}
    assert states == {two.encoders[0].url: "down", two.encoders[1].url: "ready"}


def test_both_are_killed(two: Fleet, singles: list[Case]) -> None:
    died: list[float] = []

    def kill() -> None:
        died.append(time.monotonic())
        killing(*two.encoders)()

    outcomes = during(two, many(singles, 300), kill)
    check(outcomes, 300, GONE)
    waited = [outcome.ended - died[0] for outcome in outcomes if outcome.status == 503 and outcome.began < died[0]]
    assert len(waited) >= CLIENTS // 2
    assert percentile(waited, 0.99) <= 0.1, sorted(waited)[-10:]
    # Those that came later are refused at once, and text goes on.
    later = [outcome.seconds for outcome in outcomes if outcome.status == 503 and outcome.began > died[0] + 0.1]
    assert percentile(later, 0.99) <= 0.1
    [text] = asyncio.run(ask_all(two.language.url, [text_case()]))
    assert (text.status, text.wrong) == (200, False)


def test_one_that_is_stopped_is_lost_in_time_and_back_when_it_goes_on(one: Fleet, singles: list[Case]) -> None:
    stopped: list[float] = []
    [encoder] = one.encoders

    def stop() -> None:
        encoder.process.send_signal(signal.SIGSTOP)
        stopped.append(time.monotonic())

    outcomes = during(one, many(singles, CLIENTS), stop)
    try:
        check(outcomes, CLIENTS, {"encoder_lost", "encoder_unavailable"})
        assert codes(outcomes)["encoder_lost"] >= CLIENTS // 2
        assert max(outcome.ended for outcome in outcomes) - stopped[0] <= LIVENESS + 0.5
        # Nobody waits for it again, and text does not notice.
        refused, text = asyncio.run(ask_all(one.language.url, [singles[0], text_case()]))
        if refused.status == 200:
            refused, text = text, refused
        assert (refused.code, text.wrong) == ("encoder_unavailable", False)
        assert refused.seconds < 0.2
    finally:
        encoder.process.send_signal(signal.SIGCONT)
    continued = time.monotonic()
    one.set_faults()

    assert until_served(one, singles[0]) - continued <= 2 * LIVENESS
    # What it still sends of the time before is dropped; nothing of it is in anyone's answer.
    outcomes = asyncio.run(ask_all(one.language.url, many(singles, 200), CLIENTS))
    check(outcomes, 200, set())
    assert codes(outcomes)["ok"] == 200


def test_one_of_two_is_stopped_and_the_other_does_its_work(two: Fleet, singles: list[Case]) -> None:
    encoder = two.encoders[0]

    def stop() -> None:
        encoder.process.send_signal(signal.SIGSTOP)

    outcomes = during(two, many(singles, 200), stop)
    encoder.process.send_signal(signal.SIGCONT)
    check(outcomes, 200, {"encoder_lost"})
    assert codes(outcomes)["ok"] == 200
    assert metrics(two.language)['epd_failover_total{code="encoder_lost"}'] >= CLIENTS // 4
    two.set_faults()
    wait_for(lambda: all(view["state"] == "ready" for view in two.states().values()), 2 * LIVENESS, "return to the pool")


def test_a_late_message_is_dropped_and_counted(one: Fleet, singles: list[Case]) -> None:
    """It was sent after the language service had given up on it, and belongs to nobody."""
    one.set_faults({"kind": "late", "seconds": 1.5, "count": 4})
    outcomes = asyncio.run(ask_all(one.language.url, many(singles, 4)))
    check(outcomes, 4, {"embedding_incomplete"})
    assert codes(outcomes)["embedding_incomplete"] == 4
    check(asyncio.run(ask_all(one.language.url, many(singles, 60), 8)), 60, set())
    late = 'epd_late_messages_total{reason="late"}'
    wait_for(lambda: metrics(one.language).get(late) == 4, 5, "the late messages")
