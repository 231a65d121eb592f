"""Single flight: what many want at once is computed once."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Generic, TypeVar, cast

from shared.errors import InvalidMedia

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FlightLost(Exception):
    """A flight ended without a result. ``failed`` tells a computation that failed, which others had better try each for
    themselves, from one that was only given up, which one of those who waited may begin again for all."""

    def __init__(self, failed: bool) -> None:
        super().__init__()
        self.failed = failed


class Flight(Generic[V]):
    """A computation that is under way. Its leader leaves the block when it is over, one way or another."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        # Resolves whatever happens, so that an error which nobody waits for is none; True where there is a result.
        self._over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._value: V | None = None
        self._error: InvalidMedia | None = None
        self._failed = False

    def __enter__(self) -> Flight[V]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.lose(isinstance(error, Exception), error if isinstance(error, InvalidMedia) else None)

    def land(self, value: V) -> None:
        """Hands the result to all who wait."""
        self._value = value
        self._finish(True)

    def lose(self, failed: bool, error: InvalidMedia | None = None) -> None:
        """Ends it without a result, unless it has landed: it failed, or was only given up (see ``FlightLost``). An ``error`` is
        for all who wait."""
        self._failed = failed
        self._error = None if error is None else _copy_of(error)
        self._finish(False)

    def _finish(self, landed: bool) -> None:
        if not self._over.done():
            self._over.set_result(landed)
            self._end()

    async def result(self) -> V:
        """What it lands with, for those who follow. A follower that is cancelled takes nobody along.

        Raises:
            InvalidMedia: the media is at fault, whoever sends it; an exception for each caller, without ``param``.
            FlightLost: there will be no result.
        """
        if await asyncio.shield(self._over):
            return cast(V, self._value)
        if self._error is not None:
            raise _copy_of(self._error)  # equal media is equally bad
        raise FlightLost(self._failed)


def _copy_of(error: InvalidMedia) -> InvalidMedia:
    """The same without a place in a request, and without the traceback that an error collects from each who raises it."""
    found = copy.copy(error)
    found.param = None
    return found


class SingleFlight(Generic[K, V]):
    """The computations under way, by key; for one event loop only. ``joined`` is called for everyone who follows another."""

    def __init__(self, joined: Callable[[], object] = lambda: None) -> None:
        self._flights: dict[K, Flight[V]] = {}
        self._joined = joined

    def __len__(self) -> int:
        return len(self._flights)

    def follow(self, key: K) -> Flight[V] | None:
        """The computation that is under way for a key; None where there is none, and the caller may ``lead``."""
        flight = self._flights.get(key)
        if flight is not None:
            self._joined()
        return flight

    def lead(self, key: K) -> Flight[V]:
        """Begins a computation that others can follow; none may be under way. To be used as a context manager."""
        assert key not in self._flights
        flight = self._flights[key] = Flight[V](lambda: self._flights.pop(key, None))
        return flight

    async def run(self, key: K, work: Callable[[], Awaitable[V]]) -> V:
        """The result of ``work``, or of the same work that another caller has begun.

        A caller that is cancelled stops its own work only: of those who followed it, one begins again. What fails with
        anything but ``InvalidMedia`` is tried by each for itself.

        Raises:
            Exception: what ``work`` raises.
        """
        while (flight := self.follow(key)) is not None:
            try:
                return await flight.result()
            except FlightLost as lost:
                if lost.failed:
                    return await work()
        with self.lead(key) as flight:
            value = await work()
            flight.land(value)
            return value
