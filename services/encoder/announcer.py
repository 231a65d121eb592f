"""Registers the encoder with language services, again and again, so that one that starts later hears of it too."""

from __future__ import annotations

import asyncio
from types import TracebackType

import httpx

from services.encoder.settings import EncoderSettings
from shared.addresses import bracketed, host_towards, is_wildcard
from shared.control import Registration, ServiceInfo
from shared.errors import from_body
from shared.seam import Seam
from shared.telemetry import get_logger

_log = get_logger("announcer")
_TIMEOUT = 2.0


class Announcer:
    """One loop a language service. Only changes of its answer are logged."""

    def __init__(self, settings: EncoderSettings, info: ServiceInfo, seam: Seam) -> None:
        self._settings = settings
        self._info = info
        self._client = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, headers=seam.headers())
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Announcer:
        self._loops = [
            asyncio.create_task(self._announce(url), name=f"announce to {url}") for url in self._settings.language_urls()
        ]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._client.aclose()

    def stop(self) -> None:
        """Says no more; the language services find out by themselves, or from the last heartbeat."""
        for loop in self._loops:
            loop.cancel()

    async def _announce(self, language: str) -> None:
        known: str | None = None
        while True:
            try:
                reason = await self._register(language)
            except Exception as error:  # whatever it is, the next round may go better, and without rounds nobody finds out
                reason = f"{type(error).__name__}: {error}"
            if reason != known:
                if reason:
                    _log.warning("not registered", language=language, reason=reason)
                else:
                    _log.info("registered", language=language)
                known = reason
            await asyncio.sleep(self._settings.announce_interval)

    async def _register(self, language: str) -> str:
        """Why the language service does not take the encoder; nothing where it does."""
        try:
            registration = Registration(url=await self._own_url(language), info=self._info, max_items=self._settings.max_items)
            response = await self._client.post(f"{language}/v1/encoders", json=registration.model_dump(mode="json"))
        except (httpx.HTTPError, OSError) as error:
            return f"unreachable: {error or type(error).__name__}"
        if response.is_success:
            return ""
        told = from_body(response.content)
        return f"HTTP status {response.status_code}" if told is None else told.message

    async def _own_url(self, language: str) -> str:
        if self._settings.advertise_url:
            return self._settings.advertise_url
        host = self._settings.host
        if is_wildcard(host):
            host = await asyncio.to_thread(host_towards, language)
        return f"http://{bracketed(host)}:{self._settings.port}"
