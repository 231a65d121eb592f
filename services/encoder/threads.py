"""Threads for work that blocks, shared fairly among calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from services.encoder.fair import FairGate
from shared.priority import begin_computing

P = ParamSpec("P")
T = TypeVar("T")


class Turn:
    """Lets its holder run one thing after another in a thread."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.last: Future[Any] | None = None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``."""
        self.last = future = self._pool.submit(work, *args, **kwargs)
        return await asyncio.wrap_future(future)


class FairThreads:
    """A number of threads that calls take turns on."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="media", initializer=begin_computing)
        self._gate = FairGate(2 * count)  # a thread that becomes free finds work without waiting for the event loop

    @asynccontextmanager
    async def turn(self, call: Hashable) -> AsyncIterator[Turn]:
        """Inside it, it is the turn of ``call``. Whoever is cancelled while waiting leaves."""
        await self._gate.acquire(call)
        turn = Turn(self._pool)
        try:
            yield turn
        finally:
            if turn.last is None or turn.last.done() or turn.last.cancel():
                self._gate.release()
            else:
                # A thread cannot be interrupted: the permit of a cancelled caller comes back when the thread does.
                turn.last.add_done_callback(partial(self._release, asyncio.get_running_loop()))

    async def at_once(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, which gets the next free thread: for little things, at the end of what calls began."""
        return await asyncio.wrap_future(self._pool.submit(work, *args, **kwargs))

    def close(self) -> None:
        """What has not begun never will."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _release(self, loop: asyncio.AbstractEventLoop, _: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended by then
            loop.call_soon_threadsafe(self._gate.release)
