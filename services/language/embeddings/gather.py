"""All embeddings of a request, or the reason why there are none. Nothing is ever computed here instead."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from services.language.deadline import Deadline
from services.language.embeddings.cache import EmbeddingCache
from services.language.embeddings.failover import Failover
from services.language.embeddings.job import Job
from services.language.embeddings.receiver import Holding, Receiver
from services.language.prompt.conversation import MediaSource
from services.language.timeline import Timeline
from shared.errors import EmbeddingTimeout, EncoderOverloaded, EpdError, InvalidMedia
from shared.flight import Flight, FlightLost
from shared.identity import MediaItem
from shared.pace import Pace
from shared.telemetry import Metrics
from shared.together import together
from shared.tracing import NO_TRACES, Tracer


class Gatherer:
    """Takes a request's items from the cache, waits for those that another request is asking for, asks for the rest, and gives
    up at the deadline. No more than ``max_waiting`` requests wait at a time."""

    def __init__(
        self,
        failover: Failover,
        cache: EmbeddingCache,
        receiver: Receiver,
        max_waiting: int,
        metrics: Metrics,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self._tracer = tracer
        self._failover = failover
        self._cache = cache
        self._receiver = receiver
        self._max_waiting = max_waiting
        self._waiting = Pace()
        self._seconds = metrics.histogram(
            "epd_embedding_wait_seconds", "Time from asking for embeddings to having them all, or to the failure.", "code"
        )

    def check(self, items: int) -> None:
        """Refuses at once what cannot be had now; nothing while the cache has something, since it may be just that.

        Raises:
            EncoderUnavailable, EncoderOverloaded: no encoder could take so many items.
        """
        if self._cache.empty:
            self._failover.check(items)

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
        timeline: Timeline | None = None,
    ) -> list[MediaItem]:
        """Verified items in the order of ``media``; none for none. Their embeddings are not to be written to: others have the
        same. ``timeline`` is told of each.

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
                job = Job(wire_id, media, token_budget, deadline, forwarded, holding, self._cache)
                job.items.update(self._cache.find_all(media))
                cached = frozenset(job.items)
                span.set(cached=len(cached))
                job.check_tokens()
                try:
                    if job.missing:
                        await self._by_the_deadline(job)
                finally:
                    span.set(attempts=next(job.numbers))  # the number of the one that would come next
                job.check_tokens()
            if timeline is not None:
                timeline.items = job.times(cached)
            code = "ok"
            return [job.items[source.index] for source in media]
        except Exception as error:
            code = error.code if isinstance(error, EpdError) else "internal_error"
            raise
        finally:
            self._seconds.labels(code).observe(time.perf_counter() - began)

    async def _by_the_deadline(self, job: Job) -> None:
        try:
            with self._place():
                async with asyncio.timeout(job.deadline.left()):
                    await self._obtain(job, job.missing)
        except TimeoutError as error:
            raise EmbeddingTimeout(
                f"{len(job.missing)} of {len(job.media)} embeddings did not arrive within "
                f"{job.deadline.seconds:g} s; nothing was computed locally instead."
            ) from error

    @contextmanager
    def _place(self) -> Iterator[None]:
        """A place among the requests that wait for embeddings.

        Raises (on entering):
            EncoderOverloaded: there is none.
        """
        if self._waiting.open >= self._max_waiting:
            text = f"{self._waiting.open} requests wait for embeddings already."
            raise EncoderOverloaded(text, retry_after=self._waiting.time_for(1))
        self._waiting.begin()
        try:
            yield
        finally:
            self._waiting.end()

    async def _obtain(self, job: Job, sources: Sequence[MediaSource]) -> None:
        """Waits for what somebody is asking for already, be it this request, and asks for the rest."""
        asked: list[MediaSource] = []
        followed: list[tuple[MediaSource, Flight[MediaItem]]] = []
        try:
            for source in sources:
                if (flight := self._cache.follow(source)) is not None:
                    followed.append((source, flight))
                    continue
                asked.append(source)
                if (led := self._cache.lead(source)) is not None:
                    job.flights[source.index] = led
            await together([self._failover.ask(job, asked), *(self._follow(job, *each) for each in followed)])
        except BaseException as error:
            for source in asked:
                job.given_up(source, error)
            raise

    async def _follow(self, job: Job, source: MediaSource, flight: Flight[MediaItem]) -> None:
        """Waits for an item that is asked for elsewhere; where it does not come, this request sees to it."""
        try:
            item = await flight.result()
        except InvalidMedia as error:
            error.param = source.param
            raise
        except FlightLost as lost:
            failed = lost.failed
        else:
            job.items[source.index] = item.again()
            return
        await (self._failover.ask(job, [source]) if failed else self._obtain(job, [source]))
