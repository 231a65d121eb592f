"""Registers the encoder with language services, again and again, so that one that starts later hears of it too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

import httpx

from services.encoder.discovery import Languages
from services.encoder.settings import EncoderSettings
from shared.addresses import bracketed, host_towards, is_wildcard
from shared.control import Registered, Registration, ServiceInfo
from shared.errors import from_body
from shared.seam import Seam
from shared.telemetry import get_logger

_log = get_logger("announcer")
_TIMEOUT = 2.0


class Announcer:
    """Looks again and again which language services there are, and has one loop for each. Only changes are logged."""

    def __init__(self, settings: EncoderSettings, info: ServiceInfo, seam: Seam, languages: Languages) -> None:
        self._settings = settings
        self._info = info
        self._languages = languages
        self._client = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, headers=seam.headers())
        self._looking: asyncio.Task[None] | None = None
        self._loops: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Announcer:
        self._looking = asyncio.create_task(self._look(), name="look for language services")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        loops = self._stop()
        await asyncio.gather(*loops, return_exceptions=True)
        await self._client.aclose()

    def stop(self) -> None:
        """Says no more; the language services find out by themselves, or from the last heartbeat."""
        self._stop()

    def _stop(self) -> list[asyncio.Task[None]]:
        loops = [*self._loops.values(), *([] if self._looking is None else [self._looking])]
        for loop in loops:
            loop.cancel()
        return loops

    async def _look(self) -> None:
        """Begins a loop for each language service that is new, and ends those of the ones that are gone."""
        while True:
            try:
                self._attend(await self._languages.urls())
            except Exception as error:  # those that are known go on being told
                _log.error("looking for language services failed", exc_info=error)
            await asyncio.sleep(self._settings.announce_interval)

    def _attend(self, urls: Sequence[str]) -> None:
        for gone in self._loops.keys() - set(urls):
            self._loops.pop(gone).cancel()
            _log.info("left", language=gone)
        for url in urls:
            if url not in self._loops:
                self._loops[url] = asyncio.create_task(self._announce(url), name=f"announce to {url}")

    async def _announce(self, language: str) -> None:
        known: str | None = None
        while True:
            again = 0.0
            try:
                again, reason = await self._register(language)
            except Exception as error:  # whatever it is, the next round may go better, and without rounds nobody finds out
                reason = f"{type(error).__name__}: {error}"
            if reason != known:
                if reason:
                    _log.warning("not registered", language=language, reason=reason)
                else:
                    _log.info("registered", language=language)
                known = reason
            await asyncio.sleep(max(self._settings.announce_interval, again))

    async def _register(self, language: str) -> tuple[float, str]:
        """Seconds after which the language service wants to be told again, and why it does not take the encoder; nothing where
        it does."""
        try:
            registration = Registration(url=await self._own_url(language), info=self._info, max_items=self._settings.max_items)
            response = await self._client.post(f"{language}/v1/encoders", json=registration.model_dump(mode="json"))
        except (httpx.HTTPError, OSError) as error:
            return 0.0, f"unreachable: {error or type(error).__name__}"
        if response.is_success:
            return Registered.model_validate_json(response.content).again, ""
        told = from_body(response.content)
        return 0.0, f"HTTP status {response.status_code}" if told is None else told.message

    async def _own_url(self, language: str) -> str:
        if self._settings.advertise_url:
            return self._settings.advertise_url
        host = self._settings.host
        if is_wildcard(host):
            host = await asyncio.to_thread(host_towards, language)
        return f"http://{bracketed(host)}:{self._settings.port}"
