"""The tower's queue: what waits is computed together, within limits, and one bad item fails alone."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import torch

from services.encoder.batcher import Batcher
from shared.identity import MediaItem
from shared.telemetry import Metrics


class Tower:
    """A tower that notes its batches, can be held up, and fails for items without tokens."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()

    def encode(self, items: Sequence[MediaItem]) -> None:
        self.entered.set()
        assert self.free.wait(5)
        self.batches.append([item.num_tokens for item in items])
        if any(item.num_tokens == 0 for item in items):
            raise RuntimeError("bad item")
        for item in items:
            item.embeds = torch.full((item.num_tokens, 1), float(item.num_tokens))


def item(tokens: int, *names: str) -> MediaItem:
    return MediaItem("image", tokens, features={name: torch.zeros(1) for name in names})


@asynccontextmanager
async def serving(tower: Tower, max_items: int = 8, max_tokens: int = 100) -> AsyncIterator[Batcher]:
    batcher = Batcher(tower.encode, max_items, max_tokens)
    batcher.start()
    try:
        yield batcher
    finally:
        tower.free.set()
        await batcher.stop()


async def held(tower: Tower, batcher: Batcher) -> asyncio.Task[None]:
    """Occupies the tower with one item until it is set free."""
    tower.free.clear()
    first = asyncio.create_task(batcher.encode(item(1)))
    await asyncio.to_thread(tower.entered.wait, 5)
    return first


async def test_what_waits_is_computed_together_in_order() -> None:
    tower = Tower()
    async with serving(tower) as batcher:
        first = await held(tower, batcher)
        items = [item(tokens) for tokens in (2, 3, 4)]
        waiting = [asyncio.create_task(batcher.encode(each)) for each in items]
        await asyncio.sleep(0)
        tower.free.set()
        await asyncio.gather(first, *waiting)
    assert tower.batches == [[1], [2, 3, 4]]
    for each in items:
        assert each.embeds is not None
        assert each.embeds.shape[0] == each.num_tokens
        assert each.timings.keys() >= {"queue", "tower"}


@pytest.mark.parametrize(
    ("limits", "batches"),
    [((2, 200), [[1], [30, 40], [50, 60]]), ((8, 100), [[1], [30, 40], [50], [60]]), ((8, 10), [[1], [30], [40], [50], [60]])],
)
async def test_batches_keep_to_both_limits(limits: tuple[int, int], batches: list[list[int]]) -> None:
    tower = Tower()
    async with serving(tower, *limits) as batcher:
        first = await held(tower, batcher)
        waiting = [asyncio.create_task(batcher.encode(item(tokens))) for tokens in (30, 40, 50, 60)]
        await asyncio.sleep(0)
        tower.free.set()
        await asyncio.gather(first, *waiting)
    assert tower.batches == batches


async def test_items_with_other_features_are_not_mixed() -> None:
    tower = Tower()
    async with serving(tower) as batcher:
        first = await held(tower, batcher)
        waiting = [asyncio.create_task(batcher.encode(each)) for each in (item(2, "a"), item(3, "a", "b"))]
        await asyncio.sleep(0)
        tower.free.set()
        await asyncio.gather(first, *waiting)
    assert tower.batches == [[1], [2], [3]]


async def test_one_bad_item_fails_alone() -> None:
    tower = Tower()
    async with serving(tower) as batcher:
        first = await held(tower, batcher)
        waiting = [asyncio.create_task(batcher.encode(item(tokens))) for tokens in (2, 0, 3)]
        await asyncio.sleep(0)
        tower.free.set()
        results = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), type(None), RuntimeError, type(None)]


async def test_who_leaves_the_queue_is_not_computed() -> None:
    tower = Tower()
    async with serving(tower) as batcher:
        first = await held(tower, batcher)
        leaving, staying = (asyncio.create_task(batcher.encode(item(tokens))) for tokens in (2, 3))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        tower.free.set()
        await asyncio.gather(first, staying)
    assert tower.batches == [[1], [3]]


async def test_calls_take_turns() -> None:
    tower = Tower()
    async with serving(tower, max_items=3) as batcher:
        first = await held(tower, batcher)
        waiting = [asyncio.create_task(batcher.encode(item(2), "many")) for _ in range(4)]
        waiting += [asyncio.create_task(batcher.encode(item(3), "one"))]
        await asyncio.sleep(0)
        assert len(batcher) == 5
        tower.free.set()
        await asyncio.gather(first, *waiting)
    assert tower.batches == [[1], [2, 3, 2], [2, 2]]


async def test_it_tells_how_long_the_tower_has_been_at_its_batch() -> None:
    tower = Tower()
    async with serving(tower) as batcher:
        assert batcher.batch_seconds == 0
        first = await held(tower, batcher)
        before = batcher.batch_seconds
        await asyncio.sleep(0.02)
        assert batcher.batch_seconds >= before + 0.02
        tower.free.set()
        await first
        await asyncio.sleep(0)
        assert batcher.batch_seconds == 0


async def test_it_counts_the_seconds_that_the_tower_computes_and_no_others() -> None:
    tower, busy = Tower(), Metrics().counter("busy_seconds", "")
    batcher = Batcher(tower.encode, 8, 100, busy=busy)
    batcher.start()
    begun = time.perf_counter()
    first = await held(tower, batcher)
    held_since = time.perf_counter()
    await asyncio.sleep(0.05)
    least = time.perf_counter() - held_since
    tower.free.set()
    await first
    counted = busy._value.get()
    assert least <= counted <= time.perf_counter() - begun
    await asyncio.sleep(0.05)
    assert busy._value.get() == counted
    await batcher.stop()


async def test_who_left_a_batch_that_fails_is_not_tried_again() -> None:
    tower = Tower()
    async with serving(tower) as batcher:
        first = await held(tower, batcher)
        bad, leaving, staying = (asyncio.create_task(batcher.encode(item(tokens))) for tokens in (0, 2, 3))
        await asyncio.sleep(0)
        tower.free.set()
        await first
        tower.free.clear()
        tower.entered.clear()
        await asyncio.to_thread(tower.entered.wait, 5)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        tower.free.set()
        await asyncio.gather(bad, staying, return_exceptions=True)
    assert tower.batches == [[1], [0, 2, 3], [0], [3]]


@pytest.mark.parametrize("tokens", [2, 0])
async def test_an_idle_tower_keeps_nothing(tokens: int) -> None:
    tower = Tower()
    async with serving(tower) as batcher:
        first = await held(tower, batcher)
        items = [item(tokens), item(tokens)]
        waiting = [asyncio.create_task(batcher.encode(each)) for each in items]
        await asyncio.sleep(0)
        tower.free.set()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        watched = [weakref.ref(each) for each in items]
        del items, waiting, first
        # A thread that waits for work still holds the last until it has put it away.
        async with asyncio.timeout(5):
            while any(each() is not None for each in watched):
                gc.collect()
                await asyncio.sleep(0.01)


class Refusing:
    """Stands for the histogram of batch sizes, or for whatever else can fail outside of the tower."""

    def observe(self, _: int) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("where", "results"),
    [
        ("queue", [TypeError, TypeError]),
        ("choosing the batch", [AttributeError, type(None)]),  # the second was not taken yet, and is well
        ("after the tower", [ZeroDivisionError, ZeroDivisionError]),
    ],
)
async def test_a_bug_outside_of_the_tower_fails_the_batch_and_the_next_one_has_its_turn(
    where: str, results: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = Tower()
    async with serving(tower) as batcher:
        first = await held(tower, batcher)
        items = [item(2), item(3)]
        waiting = [asyncio.create_task(batcher.encode(each)) for each in items]
        await asyncio.sleep(0)
        with monkeypatch.context() as patch:
            if where == "queue":
                patch.setattr(batcher._queue, "pop", None)
            elif where == "choosing the batch":
                patch.setattr(items[0], "features", None)
            else:
                patch.setattr(batcher, "_sizes", Refusing())
            tower.free.set()
            came = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert [type(result) for result in came] == results
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.wait_for(batcher.encode(item(4)), 5)
        assert batcher.batch_seconds == 0
    assert tower.batches[-1] == [4]


async def test_a_tower_that_nothing_serves_counts_as_one_that_hangs() -> None:
    async with serving(Tower()) as batcher:
        assert batcher._task is not None
        batcher._task.cancel()
        await asyncio.gather(batcher._task, return_exceptions=True)
        assert batcher.batch_seconds == float("inf")
