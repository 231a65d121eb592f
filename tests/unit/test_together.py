"""Several coroutines at once: the first failure is raised as itself, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from shared.errors import EncoderFailed, InvalidMedia, release
from shared.together import together


async def value(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def failing(error: Exception) -> int:
    await asyncio.sleep(0)
    raise error


async def never() -> int:
    return await asyncio.Event().wait()


async def test_results_come_in_order() -> None:
    assert await together(value(number) for number in range(5)) == list(range(5))
    assert await together([]) == []


async def test_a_failure_is_itself_and_a_clients_goes_first() -> None:
    ours, theirs = EncoderFailed("ours"), InvalidMedia("theirs")
    with pytest.raises(EncoderFailed) as caught:
        await together([never(), failing(ours)])
    assert caught.value is ours
    with pytest.raises(InvalidMedia):
        await together([failing(ours), failing(theirs)])


async def within(*coroutines: Callable[[], Awaitable[object]]) -> None:
    """Together in together, as attempts are that move."""

    async def inner() -> None:
        await together([_as_coroutine(coroutine()) for coroutine in coroutines])

    await together([inner(), never()])


async def _as_coroutine(work: Awaitable[object]) -> object:
    return await work


async def cancelled() -> None:
    task = asyncio.create_task(within(never, never))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def timed_out() -> None:
    try:
        async with asyncio.timeout(0.001):
            await within(never, never)
    except TimeoutError as error:
        release(error)


async def failed() -> None:
    try:
        await within(lambda: failing(EncoderFailed("why")), never)
    except EncoderFailed as error:
        release(error)


@pytest.mark.parametrize("end", [cancelled, timed_out, failed])
async def test_what_ends_badly_needs_no_garbage_collector(end: Callable[[], Awaitable[None]]) -> None:
    await end()
    gc.collect()
    gc.disable()
    try:
        await end()
        assert gc.collect() == 0
    finally:
        gc.enable()
