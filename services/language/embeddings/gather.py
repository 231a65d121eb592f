"""All embeddings of a request, or the reason why there are none. Nothing is ever computed here instead."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any

from services.language.embeddings.dispatch import Dispatcher, item_of
from services.language.embeddings.pool import Encoder, EncoderPool
from services.language.embeddings.receiver import Receiver, Wait
from services.language.prompt.conversation import MediaSource
from services.language.settings import LanguageSettings
from shared.control import EncodeRequest, EncodeResponse
from shared.errors import EmbeddingIncomplete, EmbeddingTimeout
from shared.identity import MediaItem
from shared.telemetry import Metrics


class Gatherer:
    """Asks an encoder, waits for its messages, and gives up at the deadline."""

    def __init__(
        self,
        settings: LanguageSettings,
        pool: EncoderPool,
        dispatcher: Dispatcher,
        receiver: Receiver,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._dispatcher = dispatcher
        self._receiver = receiver
        self._closing: set[asyncio.Task[EncodeResponse]] = set()
        self._seconds = metrics.histogram("epd_embedding_wait_seconds", "Time from asking for embeddings to having them all.")

    async def gather(self, request_id: str, media: Sequence[MediaSource], token_budget: int) -> list[MediaItem]:
        """Verified items in the order of ``media``; none for none.

        Raises:
            InvalidMedia, InvalidRequest: the client's media is at fault, or needs more than ``token_budget`` tokens.
            Unavailable: with the reason why the embeddings did not come.
        """
        if not media:
            return []
        began = time.perf_counter()
        # Callers choose their request ids, and may choose the same; what a wait is known by must be its own.
        wire_id = f"{request_id[:64]}/{uuid.uuid4().hex}"
        timeout = self._settings.embedding_timeout
        with (
            self._pool.borrow() as encoder,
            self._receiver.expect(wire_id, 0, [source.index for source in media]) as wait,
        ):
            try:
                async with asyncio.timeout(timeout):
                    await self._attempt(encoder, wait, wire_id, media, token_budget, timeout)
            except TimeoutError as error:
                raise EmbeddingTimeout(
                    f"{len(media) - len(wait.items)} of {len(media)} embeddings did not arrive within {timeout:g} s; "
                    "nothing was computed locally instead."
                ) from error
            self._seconds.observe(time.perf_counter() - began)
            return [wait.items[source.index] for source in media]

    async def _attempt(
        self,
        encoder: Encoder,
        wait: Wait,
        wire_id: str,
        media: Sequence[MediaSource],
        token_budget: int,
        timeout: float,
    ) -> None:
        call = EncodeRequest(
            request_id=wire_id,
            attempt=0,
            num_items=len(media),
            items=tuple(item_of(source) for source in media),
            reply_to=encoder.reply_to,
            timeout=timeout,
            token_budget=token_budget,
        )
        answer = asyncio.create_task(self._dispatcher.encode(encoder.url, call, media))
        try:
            either: list[asyncio.Future[Any]] = [answer, wait.done]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not wait.done.done():
                # The open response is a lease on the encoder: if it breaks, this raises at once.
                await answer
                await self._stragglers(wait, len(media))
            # What came is verified in its turn; the deadline bounds that too.
            await wait.done
        except BaseException:
            answer.cancel()
            raise
        # All is here; the response only remains to be read, so that its connection can be used again.
        self._closing.add(answer)
        answer.add_done_callback(self._close)

    async def _stragglers(self, wait: Wait, expected: int) -> None:
        """Items may overtake the response or come a little after it, but not much."""
        received = asyncio.create_task(wait.received.wait())
        try:
            either: list[asyncio.Future[Any]] = [received, wait.done]
            await asyncio.wait(either, timeout=self._settings.arrival_grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            received.cancel()
        if not wait.done.done() and not wait.received.is_set():
            raise EmbeddingIncomplete(
                f"The encoder said that it was done, but {len(wait.missing)} of {expected} embeddings never came; "
                "nothing was computed locally instead."
            )

    def _close(self, answer: asyncio.Task[EncodeResponse]) -> None:
        self._closing.discard(answer)
        if not answer.cancelled():
            answer.exception()  # of no consequence any more, but seen
