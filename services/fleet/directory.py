"""Where encoders find the language services of their application: a list with leases, kept by a named actor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import ray
from ray.exceptions import ActorDiedError

from shared.telemetry import get_logger

_log = get_logger("directory")

_NAMESPACE = "epd"
_MOST = 4096
# Seconds that a language service stays known after its last word, between two words, and that one may take.
_LEASE, _RENEWAL, _TIMEOUT = 6.0, 1.0, 3.0


class Leases:
    """Base URLs, each until its lease ends or is given back. It lists none for its first seconds, ``settles``: made anew, it
    does not know of those that have yet to renew theirs, and to leave them out would say that they are gone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, settles: float = 2 * _RENEWAL) -> None:
        self._clock = clock
        self._settled_at = clock() + settles
        self._ends: dict[str, float] = {}

    def renew(self, url: str, seconds: float) -> None:
        """``url`` is known for ``seconds`` from now on.

        Raises:
            ValueError: too many are known.
        """
        self._expire()
        if url not in self._ends and len(self._ends) >= _MOST:
            raise ValueError(f"{_MOST} language services are known; that is all the directory holds")
        self._ends[url] = self._clock() + seconds

    def release(self, url: str) -> None:
        """``url`` is not known any more."""
        self._ends.pop(url, None)

    def urls(self) -> list[str]:
        """Those that are known, in the order in which they came.

        Raises:
            LookupError: it is too young to know.
        """
        if self._clock() < self._settled_at:
            raise LookupError("the directory was just made, and does not know yet who is there")
        self._expire()
        return list(self._ends)

    def _expire(self) -> None:
        now = self._clock()
        self._ends = {url: end for url, end in self._ends.items() if end > now}


class Directory(Protocol):
    """What replicas ask of the list, wherever it is kept."""

    async def renew(self, url: str, seconds: float) -> None: ...
    async def release(self, url: str) -> None: ...
    async def urls(self) -> Sequence[str]: ...


class NamedDirectory:
    """The list of an application, in an actor that whoever needs it first makes, and anybody makes anew.

    The actor holds nothing that its users do not say again within a second. It lives as long as its maker has it, so that
    nothing is left of it when the application has ended; when the maker dies, the next call makes another. When only the
    actor's own process or node dies, Ray starts it again.
    """

    def __init__(self, application: str) -> None:
        self._name = f"directory of {application}"
        self._opening: asyncio.Task[Any] | None = None

    async def renew(self, url: str, seconds: float) -> None:
        await self._call("renew", url, seconds)

    async def release(self, url: str) -> None:
        await self._call("release", url)

    async def urls(self) -> Sequence[str]:
        found: list[str] = await self._call("urls")
        return found

    async def _call(self, method: str, *arguments: object) -> Any:
        """Raises TimeoutError or RayError where the actor does not answer."""
        async with asyncio.timeout(_TIMEOUT):
            # One for all callers, which none of them ends: an actor dies with the first handle to it.
            if self._opening is None:
                self._opening = asyncio.create_task(asyncio.to_thread(self._open))
            opening = self._opening
            try:
                actor = await asyncio.shield(opening)
            except Exception:
                self._forget(opening)
                raise
            try:
                return await getattr(actor, method).remote(*arguments)
            except ActorDiedError:  # for good; one that is only away, or that Ray starts again, stays the one to ask
                self._forget(opening)
                raise

    def _forget(self, opening: asyncio.Task[Any]) -> None:
        if self._opening is opening:
            self._opening = None

    def _open(self) -> Any:
        return (
            ray.remote(Leases)
            .options(
                name=self._name,
                namespace=_NAMESPACE,
                get_if_exists=True,
                max_restarts=-1,
                num_cpus=0,
                scheduling_strategy="DEFAULT",
            )
            .remote()
        )


class Listing:
    """Inside it, ``url`` is in the directory. Failures are borne: encoders know for a while whom they found last."""

    def __init__(self, directory: Directory, url: str) -> None:
        self._directory = directory
        self._url = url
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Listing:
        self._task = asyncio.create_task(self._renew(), name="be in the directory")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._directory.release(self._url)
        except Exception as problem:  # the lease ends by itself
            _log.info("not taken out of the directory", reason=f"{type(problem).__name__}: {problem}")

    async def _renew(self) -> None:
        failing = False
        while True:
            try:
                await self._directory.renew(self._url, _LEASE)
            except Exception as problem:  # whatever it is, the next time may go better
                if not failing:
                    _log.warning("not in the directory", reason=f"{type(problem).__name__}: {problem}")
                failing = True
            else:
                if failing:
                    _log.info("in the directory again")
                failing = False
            await asyncio.sleep(_RENEWAL)
