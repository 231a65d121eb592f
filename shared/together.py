"""Several coroutines at once, as one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from shared.errors import ClientError

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first failure cancels the others and is raised as itself, not as a group; where several fail at the
    same moment, a client's error goes first, since trying again would not help."""
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(coroutine) for coroutine in coroutines]
        return [task.result() for task in tasks]
    except BaseExceptionGroup as failures:
        raise min(failures.exceptions, key=lambda error: not isinstance(error, ClientError)) from None
    finally:
        # The errors hold this frame by their tracebacks; what it holds would be a ring.
        tasks.clear()
