"""Items spread over encoders; what fails at one moves to another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.language.embeddings.attempt import Attempts
from services.language.embeddings.encoder import Encoder, Share
from services.language.embeddings.job import Job
from services.language.embeddings.pool import EncoderPool
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
from shared.telemetry import Metrics, get_logger
from shared.together import together

_log = get_logger("failover")

# Nothing was done yet for a refused share, so moving it costs no retry while no more encoders than these were asked. Where
# as many of the least loaded refused, a thousand others would too, and to ask them all would only add to their load.
_FREE_REFUSALS = 16
_REFUSALS = (EncoderOverloaded, EncoderUnavailable)
_MOVES = (
    *_REFUSALS,
    EncoderFailed,
    EncoderLost,
    EmbeddingIncomplete,
    EmbeddingCorrupt,
    EmbeddingIncompatible,
)


class Failover:
    """Asks encoders for items, each for its share, and others, up to ``retries`` times, for what one failed to bring."""

    def __init__(self, pool: EncoderPool, attempts: Attempts, retries: int, metrics: Metrics) -> None:
        self._pool = pool
        self._attempts = attempts
        self._retries = retries
        self._failovers = metrics.counter(
            "epd_failover_total", "Items that were moved to another encoder, by the failure that moved them.", "code"
        )

    def check(self, items: int) -> None:
        """Whether ``items`` items could be asked for now.

        Raises:
            EncoderUnavailable, EncoderOverloaded: they could not.
        """
        self._pool.check(items)

    async def ask(self, job: Job, sources: Sequence[MediaSource]) -> None:
        """Returns when the items of ``sources`` are among ``job.items``. The caller bounds the time.

        Raises:
            ClientError: the media is at fault.
            Unavailable: no encoder can be asked, or with the reason why not all came.
        """
        if sources:
            await self._run(job, self._pool.assign(sources), frozenset(), self._retries)

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
        free = isinstance(failure, _REFUSALS) and len(avoiding) < _FREE_REFUSALS
        if not isinstance(failure, _MOVES) or (retries == 0 and not free):
            raise failure
        avoiding = avoiding | {share.encoder}
        try:
            shares = self._pool.assign(rest, avoiding)
        except Unavailable:
            # There is no other: the caller gets to know what happened, not that nobody is left.
            raise failure from None
        self._failovers.labels(failure.code).inc(len(rest))
        _log.warning("items moved", items=len(rest), code=failure.code, reason=failure.message, encoder_id=failure.encoder_id)
        await self._run(job, shares, avoiding, retries if free else retries - 1)
