"""The one path an item takes: fetch, decode, preprocess, hash on the device, tower, publish."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from services.encoder.admission import Admission, Share
from services.encoder.batcher import Batcher
from services.encoder.cache import EncoderCache
from services.encoder.faults.base import Call, Outgoing, Sender, Stage
from services.encoder.faults.registry import Faults
from services.encoder.fetch import Fetcher
from services.encoder.job import Job
from services.encoder.models.generic import EncoderHalf
from services.encoder.prepare import Preparer, check_tokens, inline_bytes
from services.encoder.publisher import Publisher
from services.encoder.settings import EncoderSettings
from services.encoder.tally import Tally
from services.encoder.threads import FairThreads
from services.encoder.transport.carriers import Carriers
from shared.control import EncodeItem, EncodeRequest, EncodeResponse, ItemMetadata
from shared.errors import EmbeddingTimeout, InvalidRequest
from shared.identity import ContentHasher, MediaItem
from shared.residency import Residency
from shared.telemetry import Metrics
from shared.together import together
from shared.tracing import NO_TRACES, Tracer
from shared.wire import Header


@dataclass(frozen=True, slots=True)
class Identity:
    """Who encodes: stamped on every message."""

    encoder_id: str
    model_fingerprint: str


class Pipeline:
    """Takes calls through the stages, in turn. Blocking stages run in threads; the tower has one of its own.

    A call that is cancelled, or whose time has run out, leaves every stage and every queue at once.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        model: EncoderHalf,
        hasher: ContentHasher,
        identity: Identity,
        fetcher: Fetcher,
        publisher: Publisher,
        faults: Faults,
        metrics: Metrics,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._publisher = publisher
        self._faults = faults
        self._tracer = tracer
        self._tally = tally = Tally(metrics, tracer)
        self._admission = Admission(settings.max_items, settings.max_bytes)
        self._threads = FairThreads(max(2, os.cpu_count() or 2))
        self._model = model
        self._residency = Residency.of(settings)
        self.carriers = Carriers(settings, self._residency, identity.encoder_id, model.device, self._threads, metrics)
        self._cache = EncoderCache(settings, model.processor, hasher, self._threads, self._admission, tally)
        self._preparer = Preparer(settings, model, hasher, fetcher, self._cache, self._residency, faults, tally)
        limits = settings.max_batch_items, settings.max_batch_tokens
        self._batcher = Batcher(self._encode, *limits, tally.batches, tally.cancelled, tally.busy)
        for name, text, value in (
            ("items_in_work", "Items admitted and not finished.", lambda: self._admission.items),
            ("bytes_in_work", "Bytes of bodies, media and features held.", lambda: self._admission.held),
            ("queue_items", "Items that wait for the tower.", lambda: len(self._batcher)),
        ):
            metrics.gauge(f"epd_encoder_{name}", text).set_function(value)

    async def __aenter__(self) -> Pipeline:
        self._batcher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._batcher.stop()
        self.carriers.close()
        self._threads.close()
        self._preparer.close()

    @property
    def items_in_work(self) -> int:
        """Items admitted and not finished."""
        return self._admission.items

    @property
    def batch_seconds(self) -> float:
        """For how long the tower has been computing its batch; 0 while it has none."""
        return self._batcher.batch_seconds

    def arriving(self, declared: int) -> AbstractContextManager[Share]:
        """Around a call from before its body is read, of which ``declared`` bytes are known; gives the share for ``run``.

        Raises:
            EncoderOverloaded: there is no room for it.
        """
        return self._admission.body(declared)

    async def run(self, call: Call, parts: dict[str, bytes], body: Share | None = None) -> EncodeResponse:
        """Encodes and publishes all items of a call. ``parts`` holds raw media by part name; it is emptied, so that each can
        go when it is not needed any more. ``body`` is what the call held while it arrived.

        Raises:
            InvalidMedia, InvalidRequest: the client's media, or its size in tokens, is at fault.
            EncoderOverloaded: there is no room for the items.
            EmbeddingTimeout: the request's time ran out.
            EncoderFailed: the receiver could not be reached.
        """
        request = call.request
        self._publisher.seam.check_reply_to(request.reply_to)
        raw = [parts.get(entry.part or "") for entry in request.items]
        parts.clear()
        held = sum(len(data) for data in raw if data is not None) + sum(inline_bytes(entry) for entry in request.items)
        with self._admission.call(len(raw), held, body) as share:
            jobs = [Job(call, entry, share, data) for entry, data in zip(request.items, raw, strict=True)]
            del raw
            try:
                async with asyncio.timeout(request.timeout):
                    await self._faults.at(Stage.ADMIT, call)
                    return await self._run(call, jobs)
            except TimeoutError as error:
                raise EmbeddingTimeout(f"The deadline of {request.timeout:.3g} s passed in the encoder.") from error
            finally:
                self._cache.release(jobs)

    async def _run(self, call: Call, jobs: list[Job]) -> EncodeResponse:
        send = self._faults.sender(call, partial(self._send, call.request.reply_to))
        await together(self._preparer.prepare(job) for job in jobs)
        needed, budget = sum(job.item.prompt_tokens for job in jobs), call.request.token_budget
        if budget is not None and needed > budget:
            raise InvalidRequest(
                f"The media need {needed} tokens, but only {max(0, budget)} are left for them in the context.",
                param="messages",
            )
        metadata = await together(self._finish(job, send) for job in jobs)
        return EncodeResponse(encoder_id=self._identity.encoder_id, items=tuple(metadata))

    async def _finish(self, job: Job, send: Sender) -> ItemMetadata:
        """Tower, where it has not been, and publication of one prepared item."""
        with self._tally.item(last=True):
            index, timings = job.entry.index, job.timings
            if job.item.embeds is None:
                with self._tracer.span("tower", item=index, tokens=job.item.num_tokens) as span:
                    spared = await self._cache.encode(job, self._batcher.encode)
                    span.set(cache=spared, queue_seconds=timings.get("queue"), tower_seconds=timings.get("tower"))
            item = job.item
            check_tokens(item.prompt_tokens, self._settings.max_item_tokens, job.entry.param)  # which some towers only tell now
            began = time.perf_counter()
            with self._tally.stage("publish", index):
                await self._faults.at(Stage.PUBLISH, job.call, job.entry)
                await send(self._outgoing(job.call.request, job.entry, item))
            timings["publish"] = time.perf_counter() - began
            self._tally.times(timings)
            return ItemMetadata(
                index=index,
                content_hash=item.content_hash,
                num_tokens=item.num_tokens,
                grid_thw=item.grid_thw,
                timings=timings,
            )

    def _outgoing(self, request: EncodeRequest, entry: EncodeItem, item: MediaItem) -> Outgoing:
        assert item.embeds is not None
        header = Header(
            request_id=request.request_id,
            attempt=request.attempt,
            item=entry.index,
            num_items=request.num_items,
            modality=item.modality,
            content_hash=item.content_hash,
            num_tokens=item.num_tokens,
            grid_thw=item.grid_thw,
            seconds_per_grid=item.seconds_per_grid,
            layout=item.layout,
            model_fingerprint=self._identity.model_fingerprint,
            encoder_id=self._identity.encoder_id,
            timings=dict(item.timings),
        )
        return Outgoing(header, {"embeds": item.embeds, **{f"deepstack.{i}": level for i, level in enumerate(item.deepstack)}})

    def _encode(self, items: Sequence[MediaItem]) -> None:
        """What the tower's thread does with a batch."""
        self._model.encode(items)
        for item in items:
            self._residency.encoded(item)

    async def _send(self, endpoint: str, outgoing: Outgoing) -> None:
        """The ``Sender`` of calls whose ``reply_to`` is ``endpoint``."""
        timeout = self._settings.publish_timeout
        parcel = await self.carriers.pack(endpoint, outgoing, timeout)
        try:
            await self._publisher.publish(endpoint, parcel.frames, timeout)
        except BaseException:
            parcel.withdraw()
            raise
        self._tally.published.inc(sum(tensor.nbytes for tensor in outgoing.tensors.values()))
