"""The encoders that this service knows, and which of them can be asked now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import httpx
from pydantic import ValidationError

from services.language.embeddings.dispatch import ConnectionBroke
from shared.control import ServiceInfo
from shared.errors import EncoderFailed, EncoderUnavailable, EpdError
from shared.telemetry import get_logger
from shared.wire import VERSION

_log = get_logger("pool")


class State(StrEnum):
    """What is known of an encoder."""

    UNKNOWN = "unknown"
    READY = "ready"
    DOWN = "down"
    REFUSED = "refused"


@dataclass(eq=False)
class Encoder:
    """One encoder: its base URL, state, and requests in flight. ``reason`` says why it is not ready.

    ``reply_to`` is where it shall send embeddings; found when it becomes ready, since names may take long to resolve.
    """

    url: str
    state: State = State.UNKNOWN
    reason: str = "it was not looked at yet"
    info: ServiceInfo | None = None
    reply_to: str = ""
    in_flight: int = 0
    look_now: asyncio.Event = field(default_factory=asyncio.Event)


class EncoderPool:
    """Looks at each encoder regularly and picks the least busy of those that are ready.

    An encoder with another checkpoint or wire version is refused, with the reason, until it changes.
    """

    def __init__(
        self,
        urls: Sequence[str],
        fingerprint: str,
        client: httpx.AsyncClient,
        reply_address: Callable[[str], str],
        interval: float,
        timeout: float,
    ) -> None:
        self.encoders = tuple(Encoder(url) for url in urls)
        self._fingerprint = fingerprint
        self._client = client
        self._reply_address = reply_address
        self._interval = interval
        self._timeout = timeout
        self._watchers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> EncoderPool:
        self._watchers = [asyncio.create_task(self._watch(encoder), name=f"watch {encoder.url}") for encoder in self.encoders]
        return self

    async def __aexit__(self, *_: object) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    def ready(self) -> int:
        """How many encoders can be asked."""
        return sum(encoder.state is State.READY for encoder in self.encoders)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Encoder]:
        """The least busy encoder that is ready, counted as in use inside the block.

        A connection that breaks inside the block takes the encoder out of the choice until it answers again.

        Raises:
            EncoderUnavailable: none is ready.
        """
        usable = [encoder for encoder in self.encoders if encoder.state is State.READY]
        if not usable:
            raise EncoderUnavailable(self._why_none())
        encoder = min(usable, key=lambda candidate: candidate.in_flight)
        encoder.in_flight += 1
        try:
            yield encoder
        except ConnectionBroke as error:
            self._set(encoder, State.DOWN, error.message)
            encoder.look_now.set()
            raise
        finally:
            encoder.in_flight -= 1

    def _why_none(self) -> str:
        if not self.encoders:
            return "No encoder is configured, and this service computes no vision itself."
        reasons = "; ".join(f"{encoder.url}: {encoder.reason}" for encoder in self.encoders)
        return f"No encoder is healthy, and this service computes no vision itself ({reasons})."

    async def _watch(self, encoder: Encoder) -> None:
        while True:
            try:
                info = await self._look(encoder)
                if encoder.state is not State.READY:
                    encoder.reply_to = await asyncio.to_thread(self._reply_address, encoder.url)
                self._judge(encoder, info)
            except EpdError as error:
                self._set(encoder, State.DOWN, error.message)
            except Exception as error:
                # A watcher must outlive whatever it meets, or the encoder would never be seen again.
                _log.error("looking at an encoder failed", url=encoder.url, exc_info=error)
                self._set(encoder, State.DOWN, f"looking at it failed ({type(error).__name__})")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(encoder.look_now.wait(), self._interval)
                # Something just failed: give it a moment, then look sooner than usual.
                await asyncio.sleep(min(0.1, self._interval))
            encoder.look_now.clear()

    async def _look(self, encoder: Encoder) -> ServiceInfo:
        try:
            response = await self._client.get(f"{encoder.url}/v1/info", timeout=self._timeout)
            response.raise_for_status()
            return ServiceInfo.model_validate_json(response.content)
        except httpx.HTTPError as error:
            raise EncoderFailed(f"it does not answer ({type(error).__name__})") from error
        except ValidationError as error:
            raise EncoderFailed("what answers there is not an encoder") from error

    def _judge(self, encoder: Encoder, info: ServiceInfo) -> None:
        encoder.info = info
        if info.service != "encoder":
            self._set(encoder, State.REFUSED, f"it is a {info.service} service")
        elif info.wire_version != VERSION:
            self._set(encoder, State.REFUSED, f"it speaks wire version {info.wire_version}, this service speaks {VERSION}")
        elif info.model_fingerprint != self._fingerprint:
            text = f"its model {info.model} has fingerprint {info.model_fingerprint}, this service has {self._fingerprint}"
            self._set(encoder, State.REFUSED, text)
        else:
            self._set(encoder, State.READY, "")

    def _set(self, encoder: Encoder, state: State, reason: str) -> None:
        if (encoder.state, encoder.reason) != (state, reason):
            log = _log.info if state is State.READY else _log.warning
            log("encoder changed", url=encoder.url, state=state.value, reason=reason)
        encoder.state, encoder.reason = state, reason
