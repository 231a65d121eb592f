"""What is on its way to one receiver is bounded in bytes; who waits for room gets it in turn, or is told when nothing moves."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.encoder.window import Window


def enter(window: Window, size: int, timeout: float = 5.0) -> asyncio.Task[None]:
    return asyncio.create_task(window.enter(size, asyncio.get_running_loop().time(), timeout))


async def turns() -> None:
    """Gives everyone who can go on the time for it."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_there_is_room_up_to_the_limit_and_then_when_something_leaves() -> None:
    window = Window(10)
    await enter(window, 6)
    await enter(window, 4)
    late = enter(window, 1)
    await turns()
    assert (late.done(), window.queued) == (False, 10)
    window.sent(4)
    await late
    assert window.queued == 7


async def test_one_that_is_alone_is_never_too_large() -> None:
    window = Window(10)
    await enter(window, 100)
    late = enter(window, 1)
    await turns()
    assert not late.done()
    window.sent(100)
    await late
    assert window.queued == 1


async def test_who_comes_later_comes_after_so_that_large_ones_get_their_turn() -> None:
    window = Window(10)
    await enter(window, 8)
    large, small = enter(window, 10), enter(window, 1)
    await turns()
    assert (large.done(), small.done()) == (False, False)
    window.sent(8)
    await large
    assert not small.done()
    window.sent(10)
    await small


async def test_nothing_that_moves_for_long_enough_is_told() -> None:
    window = Window(10)
    await enter(window, 10)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await enter(window, 1, timeout=0.1)
    assert 0.09 < time.monotonic() - began < 2
    assert window.queued == 10
    # Also when there are several: the last is told as soon as the first.
    began = time.monotonic()
    told = await asyncio.gather(*(enter(window, 1, timeout=0.1) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(error, TimeoutError) for error in told)
    assert time.monotonic() - began < 1


async def test_who_waits_waits_on_while_others_go() -> None:
    window = Window(10)
    for _ in range(10):
        await enter(window, 1)
    patient = enter(window, 10, timeout=0.3)
    for _ in range(9):
        await asyncio.sleep(0.1)
        window.sent(1)
    assert not patient.done()
    window.sent(1)
    await patient
    assert window.queued == 10


async def test_what_fails_makes_room_but_is_no_progress() -> None:
    window = Window(10)
    await enter(window, 10)
    next_one, patient = enter(window, 5, timeout=0.2), enter(window, 10, timeout=0.2)
    await turns()
    window.leave(10)
    await next_one
    with pytest.raises(TimeoutError):
        await patient
    assert window.queued == 5


async def test_who_leaves_the_queue_lets_the_next_one_in() -> None:
    window = Window(10)
    await enter(window, 6)
    large, small = enter(window, 10), enter(window, 4)
    await turns()
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    await small
    assert window.queued == 10


async def test_who_is_cancelled_as_its_turn_comes_takes_nothing_along() -> None:
    window = Window(10)
    await enter(window, 10)
    waiting = enter(window, 10)
    await turns()
    window.sent(10)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert window.queued == 0
