"""The one path an item takes: fetch, decode, preprocess, hash on the device, tower, publish."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from services.encoder.batcher import Batcher
from services.encoder.decode import decode_image
from services.encoder.fetch import Fetcher
from services.encoder.models.generic import VisionHalf
from services.encoder.publisher import Publisher, check_endpoint
from services.encoder.settings import EncoderSettings
from shared.control import EncodeItem, EncodeRequest, EncodeResponse, ItemMetadata
from shared.errors import EmbeddingTimeout, EncoderOverloaded, EpdError, InvalidMedia, InvalidRequest
from shared.identity import ContentHasher, MediaItem
from shared.telemetry import Metrics
from shared.wire import Buffer, Header, pack

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who encodes: stamped on every message."""

    encoder_id: str
    model_fingerprint: str


class Pipeline:
    """Takes requests through the stages. Blocking stages run in threads; the tower has one of its own."""

    def __init__(
        self,
        settings: EncoderSettings,
        model: VisionHalf,
        hasher: ContentHasher,
        identity: Identity,
        fetcher: Fetcher,
        publisher: Publisher,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._model = model
        self._hasher = hasher
        self._identity = identity
        self._fetcher = fetcher
        self._publisher = publisher
        self._in_work = 0
        self._threads = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="decode")
        sizes = metrics.histogram("epd_encoder_batch_items", "Items that the tower computed together.")
        self._batcher = Batcher(model.encode, settings.max_batch_items, settings.max_batch_tokens, sizes)
        self._stages = metrics.histogram("epd_encoder_stage_seconds", "Time of one item in one stage.", "stage")
        self._items = metrics.counter("epd_encoder_items_total", "Items by outcome (ok, or an error's code).", "code")
        metrics.gauge("epd_encoder_items_in_work", "Items admitted and not finished.").set_function(lambda: self._in_work)

    async def __aenter__(self) -> Pipeline:
        self._batcher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._batcher.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, request: EncodeRequest, parts: Mapping[str, bytes]) -> EncodeResponse:
        """Encodes and publishes all items of a request; ``parts`` holds raw media by part name.

        Raises:
            InvalidMedia, InvalidRequest: the client's media, or its size in tokens, is at fault.
            EncoderOverloaded: there is no room for the items.
            EmbeddingTimeout: the request's time ran out.
            EncoderFailed: the receiver could not be reached.
        """
        check_endpoint(request.reply_to)
        with self._admitted(len(request.items)):
            try:
                async with asyncio.timeout(request.timeout):
                    return await self._run(request, parts)
            except TimeoutError as error:
                raise EmbeddingTimeout(f"The deadline of {request.timeout:.3g} s passed in the encoder.") from error

    async def _run(self, request: EncodeRequest, parts: Mapping[str, bytes]) -> EncodeResponse:
        items = await _together([self._prepare(entry, parts) for entry in request.items])
        needed = sum(item.num_tokens for item in items)
        if request.token_budget is not None and needed > request.token_budget:
            raise InvalidRequest(
                f"The pictures need {needed} tokens, but only {max(0, request.token_budget)} are left for them in the context.",
                param="messages",
            )
        metadata = await _together(
            [self._finish(request, entry, item) for entry, item in zip(request.items, items, strict=True)]
        )
        return EncodeResponse(encoder_id=self._identity.encoder_id, items=tuple(metadata))

    async def _prepare(self, entry: EncodeItem, parts: Mapping[str, bytes]) -> MediaItem:
        """Everything before the tower; from here on the item's token count is known, where the processor can tell."""
        with self._counted():
            began = time.perf_counter()
            if entry.modality != "image":
                raise InvalidMedia(f"This encoder takes images, not {entry.modality}.", param=entry.param)
            data = await self._bytes_of(entry, parts)
            fetched = time.perf_counter()
            item = await asyncio.get_running_loop().run_in_executor(self._threads, self._preprocess, data, entry.param)
            item.timings["fetch"] = fetched - began
            return item

    async def _bytes_of(self, entry: EncodeItem, parts: Mapping[str, bytes]) -> bytes:
        if entry.url is not None:
            return await self._fetcher.fetch(entry.url, entry.param)
        if entry.part is None or entry.part not in parts:
            raise InvalidRequest(f"Item {entry.index} has neither a url nor a part of this body.", param=entry.param)
        data = parts[entry.part]
        if len(data) > self._settings.max_media_bytes:
            limit = self._settings.max_media_bytes
            raise InvalidMedia(f"The picture has {len(data)} bytes; at most {limit} are accepted.", param=entry.param)
        return data

    def _preprocess(self, data: bytes, param: str | None) -> MediaItem:
        began = time.perf_counter()
        image = decode_image(data, self._settings.max_pixels, param)
        decoded = time.perf_counter()
        item = self._model.preprocess(image, param)
        ready = time.perf_counter()
        item.set_hash(self._hasher.hash(item.features))
        item.timings.update(decode=decoded - began, preprocess=ready - decoded, hash=time.perf_counter() - ready)
        return item

    async def _finish(self, request: EncodeRequest, entry: EncodeItem, item: MediaItem) -> ItemMetadata:
        """Tower and publication of one prepared item."""
        with self._counted(success=True):
            await self._batcher.encode(item)
            frames = await asyncio.get_running_loop().run_in_executor(self._threads, self._frames, request, entry, item)
            began = time.perf_counter()
            await self._publisher.publish(request.reply_to, frames, self._settings.publish_timeout)
            item.timings["publish"] = time.perf_counter() - began
            for stage, seconds in item.timings.items():
                self._stages.labels(stage).observe(seconds)
            return ItemMetadata(
                index=entry.index,
                content_hash=item.content_hash,
                num_tokens=item.num_tokens,
                grid_thw=item.grid_thw,
                timings=item.timings,
            )

    def _frames(self, request: EncodeRequest, entry: EncodeItem, item: MediaItem) -> list[Buffer]:
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
            model_fingerprint=self._identity.model_fingerprint,
            encoder_id=self._identity.encoder_id,
            timings=dict(item.timings),
        )
        return pack(header, {"embeds": item.embeds, **{f"deepstack.{i}": level for i, level in enumerate(item.deepstack)}})

    @contextmanager
    def _admitted(self, items: int) -> Iterator[None]:
        if self._in_work + items > self._settings.max_items:
            limit = self._settings.max_items
            raise EncoderOverloaded(f"The encoder has {self._in_work} of at most {limit} items in work.", retry_after=1.0)
        self._in_work += items
        try:
            yield
        finally:
            self._in_work -= items

    @contextmanager
    def _counted(self, success: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._items.labels(error.code if isinstance(error, EpdError) else "internal_error").inc()
            raise
        if success:
            self._items.labels("ok").inc()


async def _together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first failure cancels the others and is raised as itself, not as a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return [task.result() for task in tasks]
