"""Which language services an encoder registers with: those of a list, and those that a name stands for at the time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from shared.addresses import bracketed, check_base_url
from shared.telemetry import get_logger

_log = get_logger("discovery")

_BY_NAME = "dns+"
# Seconds for which those found last count after looking fails.
_KEPT = 60.0
# Seconds that a look may take; other sources wait for it.
_PATIENCE = 3.0


class Languages(Protocol):
    """The language services that there are, asked for again and again."""

    async def urls(self) -> Sequence[str]:
        """Their base URLs now. What it raises is for the caller to bear."""
        ...


class Listed:
    """Always the same ones."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)

    async def urls(self) -> Sequence[str]:
        return self._urls


class Named:
    """One at each address that the host of ``url`` has at the time, all on its port: what names of many machines stand for,
    such as Kubernetes' headless services and Compose's scaled ones."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port, self._path = parts.hostname, parts.port or 80, parts.path
        self._resolving: asyncio.Task[list[Any]] | None = None

    async def urls(self) -> Sequence[str]:
        """Raises OSError or UnicodeError where the name cannot be resolved."""
        # Whoever asks again while a name server is slow waits for the same answer, not in a thread more.
        resolving = self._resolving = self._resolving or asyncio.create_task(self._resolve())
        try:
            found = await asyncio.shield(resolving)
        finally:
            if resolving.done():
                self._resolving = None
        addresses = sorted({str(address[0]) for *_, address in found})
        return [f"http://{bracketed(address)}:{self._port}{self._path}" for address in addresses]

    async def _resolve(self) -> list[Any]:
        return await asyncio.to_thread(socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM)


class Remembered:
    """Those of ``languages``, and where looking fails or takes too long, those found last, for ``kept`` seconds; then none. In
    logs they are ``what``; only changes are logged."""

    def __init__(
        self, languages: Languages, what: str, kept: float = _KEPT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._languages = languages
        self._what = what
        self._kept = kept
        self._clock = clock
        self._known: Sequence[str] = ()
        self._found_at = float("-inf")
        self._failing = False

    async def urls(self) -> Sequence[str]:
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await self._languages.urls()
        except Exception as error:  # whatever it is, the next look may go better
            if not self._failing:
                _log.warning("language services not found", name=self._what, reason=f"{type(error).__name__}: {error}")
            self._failing = True
            return self._known if self._clock() < self._found_at + self._kept else ()
        if self._failing or set(found) != set(self._known):
            _log.info("language services found", name=self._what, urls=list(found))
        self._failing = False
        self._known, self._found_at = found, self._clock()
        return found


class Together:
    """All that several sources know, each once."""

    def __init__(self, sources: Sequence[Languages]) -> None:
        self._sources = tuple(sources)

    async def urls(self) -> Sequence[str]:
        found = await asyncio.gather(*(source.urls() for source in self._sources))
        return tuple(dict.fromkeys(url for urls in found for url in urls))


def check_target(target: str) -> str:
    """An entry of ``EPD_ANNOUNCE_TO`` without a slash at its end: a base URL, or ``dns+`` and one of http.

    Raises:
        ValueError: it is neither.
    """
    trimmed = target.strip()
    if not trimmed.startswith(_BY_NAME):
        return check_base_url(trimmed)
    url = check_base_url(trimmed.removeprefix(_BY_NAME))
    if urlsplit(url).scheme != "http":
        raise ValueError(f"{trimmed!r}: behind {_BY_NAME} stands http://name:port; certificates are not for addresses")
    return f"{_BY_NAME}{url}"


def languages_of(targets: Sequence[str]) -> Languages:
    """What the entries of ``EPD_ANNOUNCE_TO`` stand for, as ``check_target`` gives them."""
    listed = Listed([target for target in targets if not target.startswith(_BY_NAME)])
    names = [target.removeprefix(_BY_NAME) for target in targets if target.startswith(_BY_NAME)]
    return Together([listed, *(Remembered(Named(url), url) for url in names)])
