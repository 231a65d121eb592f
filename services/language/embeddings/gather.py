"""All embeddings of a request, or the reason why there are none. Nothing is ever computed here instead."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from services.language.deadline import Deadline
from services.language.embeddings.attempt import Attempts
from services.language.embeddings.encoder import Encoder, Share
from services.language.embeddings.pool import EncoderPool
from services.language.embeddings.receiver import Holding, Receiver
from services.language.prompt.conversation import MediaSource
from shared.errors import (
    EmbeddingCorrupt,
    EmbeddingIncompatible,
    EmbeddingIncomplete,
    EmbeddingTimeout,
    EncoderFailed,
    EncoderLost,
    EncoderOverloaded,
    EncoderUnavailable,
    EpdError,
    Unavailable,
)
from shared.identity import MediaItem
from shared.telemetry import Metrics, get_logger
from shared.together import together
from shared.tracing import NO_TRACES, Tracer

_log = get_logger("gather")

# Nothing was done yet for a refused share, so moving it costs no retry: it ends when every healthy encoder has refused.
_REFUSALS = (EncoderOverloaded, EncoderUnavailable)
_MOVES = (
    *_REFUSALS,
    EncoderFailed,
    EncoderLost,
    EmbeddingIncomplete,
    EmbeddingCorrupt,
    EmbeddingIncompatible,
)


@dataclass
class Job:
    """One request's media on their way. ``items`` are those that arrived and verified, by index, from whichever attempt.

    ``wire_id`` is what its messages are known by; ``forwarded`` are headers that encoders get to see.
    """

    wire_id: str
    media: Sequence[MediaSource]
    token_budget: int
    deadline: Deadline
    forwarded: Mapping[str, str]
    holding: Holding
    items: dict[int, MediaItem] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)


class Gatherer:
    """Spreads a request's items over encoders, moves what fails to others, and gives up at the deadline."""

    def __init__(
        self,
        pool: EncoderPool,
        attempts: Attempts,
        receiver: Receiver,
        encoder_retries: int,
        metrics: Metrics,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self._tracer = tracer
        self._pool = pool
        self._attempts = attempts
        self._receiver = receiver
        self._retries = encoder_retries
        self._seconds = metrics.histogram(
            "epd_embedding_wait_seconds", "Time from asking for embeddings to having them all, or to the failure.", "code"
        )
        self._failovers = metrics.counter(
            "epd_failover_total", "Items that were moved to another encoder, by the failure that moved them.", "code"
        )

    def check(self, items: int) -> None:
        """Refuses at once what cannot be had now.

        Raises:
            EncoderUnavailable, EncoderOverloaded: no encoder could take so many items.
        """
        self._pool.check(items)

    def holding(self) -> AbstractContextManager[Holding]:
        """The account of one request's embeddings, which count as held until the block ends."""
        return self._receiver.holding()

    async def gather(
        self,
        request_id: str,
        media: Sequence[MediaSource],
        token_budget: int,
        deadline: Deadline,
        forwarded: Mapping[str, str],
        holding: Holding,
    ) -> list[MediaItem]:
        """Verified items in the order of ``media``; none for none.

        Raises:
            InvalidMedia, InvalidRequest: the client's media is at fault, or needs more than ``token_budget`` tokens.
            Unavailable: with the reason why the embeddings did not come.
        """
        if not media:
            return []
        began, code = time.perf_counter(), "client_gone"
        # Callers choose their request ids, and may choose the same; what a wait is known by must be its own.
        wire_id = f"{request_id[:64]}/{uuid.uuid4().hex}"
        try:
            with self._tracer.span("embeddings", items=len(media)) as span:
                job = Job(wire_id, media, token_budget, deadline, forwarded, holding)
                try:
                    await self._by_the_deadline(job)
                finally:
                    span.set(attempts=next(job.numbers))  # the number of the one that would come next
            code = "ok"
            return [job.items[source.index] for source in media]
        except Exception as error:
            code = error.code if isinstance(error, EpdError) else "internal_error"
            raise
        finally:
            self._seconds.labels(code).observe(time.perf_counter() - began)

    async def _by_the_deadline(self, job: Job) -> None:
        try:
            async with asyncio.timeout(job.deadline.left()):
                await self._run(job, self._pool.assign(job.media), frozenset(), self._retries)
        except TimeoutError as error:
            raise EmbeddingTimeout(
                f"{len(job.media) - len(job.items)} of {len(job.media)} embeddings did not arrive within "
                f"{job.deadline.seconds:g} s; nothing was computed locally instead."
            ) from error

    async def _run(self, job: Job, shares: Sequence[Share], avoiding: frozenset[Encoder], retries: int) -> None:
        try:
            await together([self._carry(job, share, avoiding, retries) for share in shares])
        finally:
            for share in shares:  # also those whose task never began
                share.release()

    async def _carry(self, job: Job, share: Share, avoiding: frozenset[Encoder], retries: int) -> None:
        """Has one encoder do its share; what it fails to do is spread over others, while retries and deadline allow."""
        try:
            await self._attempts.run(job, share)
        except asyncio.CancelledError:
            # A deadline that the caller wished for says nothing about the encoder; the service's own does.
            if job.deadline.own and job.deadline.left() <= 0:
                self._pool.report(share, EmbeddingTimeout("The deadline passed."))
            raise
        except EpdError as error:
            late = isinstance(error, EmbeddingTimeout)
            self._pool.report(share, error, blame=job.deadline.own or not late)
            failure = error
        else:
            self._pool.report(share, None)
            return
        rest = share.rest(job.items)
        refused = isinstance(failure, _REFUSALS)
        if not isinstance(failure, _MOVES) or (retries == 0 and not refused):
            raise failure
        avoiding = avoiding | {share.encoder}
        try:
            shares = self._pool.assign(rest, avoiding)
        except Unavailable:
            # There is no other: the caller gets to know what happened, not that nobody is left.
            raise failure from None
        self._failovers.labels(failure.code).inc(len(rest))
        _log.warning("items moved", items=len(rest), code=failure.code, reason=failure.message, encoder_id=failure.encoder_id)
        await self._run(job, shares, avoiding, retries if refused else retries - 1)
