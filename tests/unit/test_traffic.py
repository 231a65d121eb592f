"""What a service and its encoders say to each other is bounded, however many there are, and few lose nothing by it."""

from __future__ import annotations

import asyncio

import pytest

from services.language.embeddings.pool import FORGET_AFTER
from services.language.embeddings.traffic import Traffic

INTERVAL, TIMEOUT = 0.5, 2.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def traffic(clock: Clock) -> Traffic:
    return Traffic(INTERVAL, TIMEOUT, clock)


@pytest.mark.parametrize("number", [0, 1, 10, 50])
def test_few_encoders_are_looked_at_as_often_as_was_asked_for(traffic: Traffic, number: int) -> None:
    assert traffic.pause(number) == INTERVAL
    assert traffic.beat(number) == TIMEOUT / 8
    assert traffic.suspect(number) == 3 * TIMEOUT / 8
    assert traffic.round(number) <= INTERVAL


@pytest.mark.parametrize("number", [100, 1000, 4096])
def test_of_many_come_no_more_looks_registrations_and_signs_than_are_affordable(traffic: Traffic, number: int) -> None:
    assert number / traffic.pause(number) <= 100
    assert number / traffic.round(number) <= 300
    assert number / traffic.beat(number) <= max(2000, 4 * number / TIMEOUT)


@pytest.mark.parametrize("number", [1, 1000, 100_000])
def test_an_encoder_is_looked_at_before_it_counts_as_lost_and_registers_before_it_is_forgotten(
    traffic: Traffic, number: int
) -> None:
    assert 2 * traffic.beat(number) < traffic.suspect(number) < TIMEOUT
    assert 2 * traffic.round(number) <= FORGET_AFTER


async def test_looks_that_are_due_at_once_are_spread(traffic: Traffic, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(300):
        await traffic.turn()
    assert 99 <= 300 - len(waits) <= 101  # these at once
    assert max(waits) == pytest.approx(1.0, abs=0.01)
    clock.now += 10
    waits.clear()
    await traffic.turn()
    assert not waits
