"""Fairness among calls: whatever waits is served one call after the other, so that one picture does not wait for thirty."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that takes turns over calls; within a call, first come is first served.

    A call is any hashable key; it is known as long as something of it waits.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        """All that waits, call by call."""
        for waiting in self._calls.values():
            yield from waiting

    def push(self, call: Hashable, value: T) -> None:
        """``value`` waits behind the others of its ``call``; a new call behind all others."""
        self._calls.setdefault(call, deque()).append(value)
        self._size += 1

    def peek(self) -> T:
        """What ``pop`` would return.

        Raises:
            StopIteration: nothing waits.
        """
        return next(iter(self._calls.values()))[0]

    def pop(self) -> T:
        """Takes the first of the call whose turn it is, which then goes behind all other calls.

        Raises:
            KeyError: nothing waits.
        """
        call, waiting = self._calls.popitem(last=False)
        value = waiting.popleft()
        self._size -= 1
        if waiting:
            self._calls[call] = waiting
        return value

    def remove(self, call: Hashable, value: T) -> bool:
        """Takes ``value`` out, wherever it stands; False where it does not wait any more."""
        waiting = self._calls.get(call)
        if waiting is None or value not in waiting:
            return False
        waiting.remove(value)
        self._size -= 1
        if not waiting:
            del self._calls[call]
        return True


class FairGate:
    """Lets a number of holders through at a time; those that wait enter in turn over their calls."""

    def __init__(self, permits: int) -> None:
        self._free = permits
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def acquire(self, call: Hashable) -> None:
        """Waits for a permit, which must be given back by ``release``. Whoever is cancelled here has none."""
        if self._free:
            self._free -= 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(call, granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting.remove(call, granted)
            else:
                # Cancelled just as the permit came: it goes to the next one.
                self.release()
            raise

    def release(self) -> None:
        """Gives a permit back, to whoever's turn it is."""
        while self._waiting:
            granted = self._waiting.pop()
            # One that is done was cancelled and has not got round to leaving.
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1

    @asynccontextmanager
    async def turn(self, call: Hashable) -> AsyncIterator[None]:
        """Inside it, the caller holds a permit."""
        await self.acquire(call)
        try:
            yield
        finally:
            self.release()
