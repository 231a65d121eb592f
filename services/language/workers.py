"""Threads for what would keep the event loop from turning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """``count`` threads. Only twice as many pieces of work are with them at a time, so that only a few come back to the event
    loop at once, however many wait."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._slots = asyncio.Semaphore(2 * count)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``. The context goes along, for spans and log lines."""
        context = copy_context()
        async with self._slots:
            call = partial(work, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(_finished, call))


def _finished(work: Callable[[], T]) -> T:
    """The result of ``work``. A future cannot hold a ``StopIteration``, and whoever waits for it would wait for ever."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("an iterator ended too early") from error
