"""The tower's queue: whatever waits when the tower is free is computed together, in one thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram

from services.encoder.fair import FairQueue
from shared.identity import MediaItem
from shared.priority import begin_computing
from shared.telemetry import get_logger

_log = get_logger("batcher")


@dataclass(eq=False)
class _Waiting:
    item: MediaItem
    done: asyncio.Future[None]
    since: float = field(default_factory=time.perf_counter)


class Batcher:
    """Batches items across requests. It never waits for a batch to fill: the tower's own time does that under load.

    The queue is bounded by the pipeline, which admits no more than ``max_items`` at once. ``sizes`` observes the items of each
    batch; ``cancelled`` counts, by stage, items whose callers left, and ``busy`` the seconds that were computed.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[MediaItem]], None],
        max_items: int,
        max_tokens: int,
        sizes: Histogram | None = None,
        cancelled: Counter | None = None,
        busy: Counter | None = None,
    ) -> None:
        self._encode = encode
        self._max_items = max_items
        self._max_tokens = max_tokens
        self._sizes = sizes
        self._cancelled = cancelled
        self._busy = busy
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._computing: list[_Waiting] = []
        self._began: float | None = None
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tower", initializer=begin_computing)
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Items that wait for the tower."""
        return len(self._queue)

    @property
    def batch_seconds(self) -> float:
        """For how long the tower has been computing its batch; 0 while it has none, and for ever where nothing serves it."""
        if self._task is not None and self._task.done():
            return float("inf")
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def start(self) -> None:
        """Begins to serve the queue."""
        self._task = asyncio.create_task(self._serve(), name="batcher")

    async def stop(self) -> None:
        """Ends serving; what still waits is cancelled. A batch that is being computed is not waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for waiting in (*self._queue, *self._computing):
            waiting.done.cancel()
        self._thread.shutdown(wait=False)

    async def encode(self, item: MediaItem, call: Hashable = None) -> None:
        """Computes ``item`` in place, with the seconds that it waited and that its batch took. Calls take turns.

        A caller that is cancelled while waiting leaves the queue, and its item is not computed.
        """
        waiting = _Waiting(item, asyncio.get_running_loop().create_future())
        self._queue.push(call, waiting)
        self._arrived.set()
        try:
            await waiting.done
        except asyncio.CancelledError:
            stage = "queue" if self._queue.remove(call, waiting) else "tower"
            if self._cancelled is not None:
                self._cancelled.labels(stage).inc()
            raise

    def _take(self, batch: list[_Waiting]) -> None:
        """Fills the next batch: at least one item, then as many as both limits allow, in the queue's order."""
        batch.append(self._queue.pop())
        tokens = batch[0].item.num_tokens
        while self._queue and len(batch) < self._max_items:
            following = self._queue.peek().item
            tokens += following.num_tokens
            if tokens > self._max_tokens or following.features.keys() != batch[0].item.features.keys():
                break
            batch.append(self._queue.pop())

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            if not self._queue:
                self._arrived.clear()
                continue
            batch: list[_Waiting] = []
            self._computing = batch
            try:
                self._take(batch)
                await self._finish(batch)
            except Exception as error:
                # A bug; whoever waits must hear of it, and the next batch must have its turn.
                _log.exception("a batch failed outside of the tower", items=len(batch))
                if not batch:  # the queue does not even give one: without this it would fail so for ever
                    batch.extend(self._queue)
                    self._queue = FairQueue()
                _fail(batch, error)
            # An idle tower keeps nothing.
            self._computing = []
            del batch

    async def _finish(self, batch: Sequence[_Waiting]) -> None:
        """Everyone in the batch gets a result or an error."""
        if await self._compute(batch) or len(batch) == 1:
            return
        # One bad item must not fail its neighbours: each is tried by itself, and only the bad one fails.
        for waiting in batch:
            if not waiting.done.done():
                await self._compute([waiting])

    async def _compute(self, batch: Sequence[_Waiting]) -> bool:
        """Runs the tower once. A failure is reported to the waiting only where it is clear whose it is."""
        self._began = began = time.perf_counter()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, [waiting.item for waiting in batch])
        except Exception as error:
            if len(batch) == 1 and not batch[0].done.done():
                batch[0].done.set_exception(error)
            return False
        finally:
            self._began = None
            if self._busy is not None:
                self._busy.inc(time.perf_counter() - began)
        spent = time.perf_counter() - began
        if self._sizes is not None:
            self._sizes.observe(len(batch))
        for waiting in batch:
            waiting.item.timings.update(queue=began - waiting.since, tower=spent)
            if not waiting.done.done():
                waiting.done.set_result(None)
        return True


def _fail(batch: Sequence[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.done.done():
            waiting.done.set_exception(error)
