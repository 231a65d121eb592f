"""Threads for work that blocks, shared fairly among calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from services.encoder.fair import FairGate
from shared.priority import be_nice

P = ParamSpec("P")
T = TypeVar("T")


class FairThreads:
    """A number of threads that calls take turns on."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="media", initializer=be_nice)
        self._gate = FairGate(2 * count)  # a thread that becomes free finds work without waiting for the event loop

    async def in_turn(self, call: Hashable, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, which begins when it is the turn of ``call``. Whoever is cancelled while waiting leaves."""
        await self._gate.acquire(call)
        try:
            future = self._pool.submit(work, *args, **kwargs)
        except RuntimeError:
            self._gate.release()
            raise
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done() or future.cancel():
                self._gate.release()
            else:
                # A thread cannot be interrupted: the permit of a cancelled caller comes back when the thread does.
                future.add_done_callback(partial(self._release, asyncio.get_running_loop()))

    async def at_once(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, which gets the next free thread: for little things, at the end of what calls began."""
        return await asyncio.wrap_future(self._pool.submit(work, *args, **kwargs))

    def close(self) -> None:
        """What has not begun never will."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _release(self, loop: asyncio.AbstractEventLoop, _: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended by then
            loop.call_soon_threadsafe(self._gate.release)
