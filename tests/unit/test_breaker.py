"""A sick encoder gets one request, not all; and Retry-After says what was observed."""

from __future__ import annotations

import pytest

from services.language.deadline import Deadline
from services.language.embeddings.breaker import Breaker, Circuit
from shared.pace import Pace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ask(breaker: Breaker, ok: bool | None) -> None:
    assert breaker.admits()
    breaker.leave(breaker.enter(), ok)


def test_it_opens_after_failures_in_a_row_only(clock: Clock) -> None:
    breaker = Breaker(3, 1.0, clock)
    for ok in (False, False, True, False, False, None):
        ask(breaker, ok)
    assert breaker.circuit is Circuit.CLOSED
    ask(breaker, False)
    assert breaker.circuit is Circuit.OPEN
    assert not breaker.admits()


def test_half_open_admits_one_at_a_time_and_a_success_closes(clock: Clock) -> None:
    breaker = Breaker(1, 1.0, clock)
    ask(breaker, False)
    clock.now += 1.0
    assert breaker.circuit is Circuit.HALF_OPEN
    probe = breaker.enter()
    assert probe
    assert not breaker.admits()
    breaker.leave(probe, True)
    assert breaker.circuit is Circuit.CLOSED


def test_a_failed_probe_opens_again_and_one_without_a_verdict_gives_its_place_up(clock: Clock) -> None:
    breaker = Breaker(5, 1.0, clock)
    breaker.trip()
    clock.now += 1.0
    ask(breaker, None)
    assert breaker.admits()
    ask(breaker, False)
    assert breaker.circuit is Circuit.OPEN
    clock.now += 1.0
    ask(breaker, True)
    assert breaker.circuit is Circuit.CLOSED


def test_failures_of_requests_from_before_do_not_keep_it_open(clock: Clock) -> None:
    breaker = Breaker(1, 1.0, clock)
    begun = [breaker.enter() for _ in range(50)]
    breaker.trip()
    clock.now += 0.9
    for probe in begun:
        breaker.leave(probe, False)
    clock.now += 0.1
    assert breaker.circuit is Circuit.HALF_OPEN


def test_a_slow_probe_does_not_keep_the_next_one_out(clock: Clock) -> None:
    breaker = Breaker(1, 1.0, clock)
    ask(breaker, False)
    clock.now += 1.0
    slow = breaker.enter()
    assert not breaker.admits()
    clock.now += 1.0
    ask(breaker, True)
    assert breaker.circuit is Circuit.CLOSED
    breaker.leave(slow, None)
    assert breaker.circuit is Circuit.CLOSED


def test_pace_tells_the_time_that_units_take_in_parallel_or_not(clock: Clock) -> None:
    pace = Pace(clock)
    assert pace.time_for(10) == 1.0
    pace.begin(40)
    for _ in range(20):  # two at a time, every half second
        clock.now += 0.5
        pace.end()
        pace.end()
    assert pace.open == 0
    assert pace.time_for(40) == pytest.approx(10.0, rel=0.2)
    assert pace.time_for(1) == 1.0
    assert pace.time_for(10**6) == 60.0


def test_pace_does_not_count_idle_time(clock: Clock) -> None:
    pace = Pace(clock)
    for _ in range(20):
        clock.now += 1000.0
        pace.begin()
        clock.now += 0.1
        pace.end()
    assert pace.time_for(100) == pytest.approx(10.0, rel=0.05)


def test_a_deadline_is_only_ever_lowered() -> None:
    deadline = Deadline(10.0)
    assert deadline.lowered(20.0, own=False) is deadline
    sooner = deadline.lowered(1.0, own=False)
    assert 0 < sooner.left() <= 1.0
    assert (deadline.own, sooner.own) == (True, False)
