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
    group = asyncio.TaskGroup()
    tasks: list[asyncio.Task[T]] = []
    try:
        async with group:
            tasks += [group.create_task(coroutine) for coroutine in coroutines]
        return [task.result() for task in tasks]
    except asyncio.CancelledError as cancelled:
        failure: BaseException = cancelled.with_traceback(None)
    except BaseExceptionGroup as failures:
        failures.__traceback__ = None
        failure = min(failures.exceptions, key=lambda error: not isinstance(error, ClientError))
    finally:
        # An error holds the frames that it passed, and by those of the group and of this function the tasks, which hold the
        # error: a ring that stays, with all of the request in it, until the garbage collector comes. So nothing of it is kept.
        tasks.clear()
        del group
    try:
        raise failure
    finally:
        del failure
