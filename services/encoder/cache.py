"""What spares an item its decoding, or the tower: what was known before, and what is being done for another item right now.

Two levels are kept. ``media``: what the bytes of a picture turned out to be, so that a repeated one is not even decoded.
``embeddings``: by content hash. Between them is what is in work: as long as anybody needs it, a picture has its features, or
embeddings, only once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from services.encoder.admission import Admission, Share
from services.encoder.job import Job
from services.encoder.settings import EncoderSettings
from services.encoder.tally import Tally
from services.encoder.threads import FairThreads, Turn
from shared.control import EncodeItem
from shared.flight import Flight, FlightLost, SingleFlight
from shared.identity import ContentHasher, MediaItem
from shared.lru import ByteLRU

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Spared: TypeAlias = Literal["none", "joined", "media", "embeddings"]
"""By what an item was spared a stage: by nothing, by another that was at it, or by what the cache knew."""

Preprocess: TypeAlias = Callable[[bytes, EncodeItem], MediaItem]
"""From raw bytes to features under their hash. Blocks."""

Encode: TypeAlias = Callable[[MediaItem, Hashable], Awaitable[None]]
"""Writes an item's embeddings, when it is the turn of its call."""

# What entries take besides tensors' own bytes, as measured, with their keys: in bytes.
_KNOWN_BYTES = 640
_TENSOR_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Known:
    """What certain bytes are. ``num_tokens`` is 0 where only the tower can tell, and has not yet."""

    content_hash: str
    num_tokens: int


@dataclass(eq=False, slots=True)
class _Work:
    """A picture in work for ``holders`` items: its features, later its embeddings. ``share`` counts its bytes, once for all.

    ``key`` is what others find it by, and ``media_key`` what its bytes are known by.
    """

    key: Hashable
    media_key: Hashable
    item: MediaItem
    share: Share
    holders: int = 0


class EncoderCache:
    """Both levels and what is in work. For one event loop only; hashing and copying are done in threads.

    Where embeddings are not kept (``embedding_cache_bytes`` is 0), nothing is shared either: each item is computed for itself.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        processor: Any,
        hasher: ContentHasher,
        threads: FairThreads,
        admission: Admission,
        tally: Tally,
    ) -> None:
        config = json.dumps(processor.to_dict(), sort_keys=True, default=str)
        self._config = hashlib.blake2b(config.encode(), digest_size=16).hexdigest()
        self._hasher = hasher
        self._threads = threads
        self._admission = admission
        self._tally = tally
        self._shares = settings.embedding_cache_bytes > 0
        self._media: ByteLRU[Hashable, _Known] = ByteLRU(settings.media_cache_bytes if self._shares else 0)
        self._embeddings: ByteLRU[str, MediaItem] = ByteLRU(settings.embedding_cache_bytes)
        self._decoding: SingleFlight[Hashable, _Known] = SingleFlight()
        self._towers: SingleFlight[Hashable, None] = SingleFlight()
        self._works: dict[Hashable, _Work] = {}
        self._held: dict[Job, _Work] = {}
        tally.watch("media", self._media)
        tally.watch("embeddings", self._embeddings)

    def find(self, job: Job, content_hash: str) -> Spared | None:
        """Makes the job the item with this hash, if its embeddings are kept or it is in work; None where neither is so."""
        kept, work = self._embeddings.get(content_hash), self._works.get(content_hash)
        if kept is not None:
            self._count("embeddings", "hit")
            job.become(kept)
            return "embeddings"
        if work is not None:
            self._count("embeddings", "joined")
            self._hold(job, work)
            return "joined"
        return None

    async def prepare(self, job: Job, preprocess: Preprocess) -> Spared:
        """Makes the job the item that its bytes are, which has its embeddings already or can get them by ``encode``.

        Raises:
            InvalidMedia: they are not a good picture; without ``param`` where another item with the same bytes was first.
            EncoderOverloaded: there is no room for its features.
        """
        key: Hashable | None = None
        alone = False
        while True:
            # Whoever leads decodes at once, in the same turn: none waits for another that has yet to wait for its own turn.
            async with self._threads.turn(job.call) as turn:
                key = key or await self._media_key(job, turn)
                known = self._media.get(key)
                if known is not None and self.find(job, known.content_hash):
                    self._count("media", "hit")
                    return "media"
                flight = None if alone else self._decoding.follow(key)
                if flight is None:
                    await self._decode(job, key, turn, preprocess, alone)
                    self._count("media", "miss")
                    return "none"
            try:
                known = await _followed(job, flight)
            except FlightLost as lost:
                alone = lost.failed
                continue
            if self.find(job, known.content_hash):
                self._count("media", "joined")
                return "joined"

    async def encode(self, job: Job, encode: Encode) -> Spared:
        """Sees to it that the job's item, which has none yet, gets its embeddings."""
        work = self._held[job]
        spared: Spared = "joined"
        alone = False
        while work.item.embeds is None:
            flight = None if alone else self._towers.follow(work.key)
            if flight is None:
                await self._compute(job, work, encode, alone)
                spared = "none"
                continue
            try:
                await _followed(job, flight)
            except FlightLost as lost:
                alone = lost.failed
            except asyncio.CancelledError:
                self._tally.cancelled.labels("tower").inc()
                raise
        job.become(work.item)
        return spared

    def release(self, jobs: Iterable[Job]) -> None:
        """These are done, one way or another. What nobody else is at is gone, except for what the cache keeps."""
        for job in jobs:
            work = self._held.pop(job, None)
            if work is not None:
                work.holders -= 1
                if not work.holders:
                    work.share.release(work.share.held)
                    del self._works[work.key]

    def _hold(self, job: Job, work: _Work) -> None:
        work.holders += 1
        self._held[job] = work
        job.become(work.item)

    async def _media_key(self, job: Job, turn: Turn) -> Hashable:
        """What the job's bytes are known by: their digest, and the identity that they came with. Something unique where nothing
        is kept."""
        if not self._media.max_bytes:
            return object()
        assert job.raw is not None
        purpose = f"{job.entry.modality}/{job.entry.form}/{self._config}"
        digest, job.timings["digest"] = await turn.run(_timed_digest, self._hasher, job.raw, purpose)
        return job.entry.content_hash, digest

    async def _decode(self, job: Job, key: Hashable, turn: Turn, preprocess: Preprocess, alone: bool) -> None:
        with nullcontext() if alone else self._decoding.lead(key) as flight:
            assert job.raw is not None
            item = await turn.run(preprocess, job.raw, job.entry)
            job.timings |= item.timings
            job.let_go()
            before = self._media.get(key)
            if before is not None and not item.num_tokens:
                item.num_tokens = before.num_tokens
            if not self.find(job, item.content_hash):  # else other bytes of the same picture came before
                self._count("embeddings", "miss")
                self._begin(job, key, item)
            known = _Known(item.content_hash, item.num_tokens)
            self._put("media", self._media, key, known, _KNOWN_BYTES)
            if flight is not None:
                flight.land(known)

    def _begin(self, job: Job, media_key: Hashable, item: MediaItem) -> None:
        """The picture is in work from now on.

        Raises:
            EncoderOverloaded: there is no room for its features.
        """
        key = item.content_hash if self._shares else object()
        work = _Work(key, media_key, item, Share(self._admission))
        work.share.hold(sum(feature.nbytes for feature in item.features.values()))
        self._works[key] = work
        self._hold(job, work)

    async def _compute(self, job: Job, work: _Work, encode: Encode, alone: bool) -> None:
        with nullcontext() if alone else self._towers.lead(work.key) as flight:
            # An item for this try alone: one that was given up may still be in the tower.
            job.item.features = work.item.features
            await encode(job.item, job.call)
            # The features go; what is held are embeddings from now on, in about as many bytes.
            work.item = await self._kept(job.item)
            known = self._media.get(work.media_key)
            if known is not None and not known.num_tokens:
                known = replace(known, num_tokens=work.item.num_tokens)
                self._put("media", self._media, work.media_key, known, _KNOWN_BYTES)
            if flight is not None:
                flight.land(None)

    async def _kept(self, item: MediaItem) -> MediaItem:
        """The item with its embeddings and without its features, as it is kept where it fits."""
        value = item.again()
        size = item.kept_bytes + _TENSOR_BYTES * (1 + len(item.deepstack))
        if size <= self._embeddings.max_bytes and await self._threads.at_once(_fit_to_keep, value):
            self._put("embeddings", self._embeddings, value.content_hash, value, size)
        return value

    def _put(self, level: str, cache: ByteLRU[K, V], key: K, value: V, size: int) -> None:
        before = cache.evicted
        cache.put(key, value, size)
        self._tally.evictions.labels(level).inc(cache.evicted - before)

    def _count(self, level: str, outcome: str) -> None:
        if (self._media if level == "media" else self._embeddings).max_bytes:
            self._tally.lookups.labels(level, outcome).inc()


async def _followed(job: Job, flight: Flight[V]) -> V:
    """The result of a flight that another leads, and how long the job waited for it.

    Raises:
        InvalidMedia, FlightLost: as ``Flight.result`` does.
    """
    began = time.perf_counter()
    try:
        return await flight.result()
    finally:
        job.timings["joined"] = job.timings.get("joined", 0.0) + time.perf_counter() - began


def _timed_digest(hasher: ContentHasher, data: bytes, purpose: str) -> tuple[str, float]:
    """The digest, and the seconds that it took."""
    began = time.perf_counter()
    return hasher.hash_bytes(data, purpose), time.perf_counter() - began


def _fit_to_keep(item: MediaItem) -> bool:
    """Makes the embeddings' memory the item's own: of a batch, an item has views, which would keep all of it.

    False where there are numbers that are not finite: those are refused wherever they come, and next time may be better.
    """
    tensors = [tensor for tensor in (item.embeds, *item.deepstack) if tensor is not None]
    if not all(bool(torch.isfinite(tensor.sum(dtype=torch.float32))) for tensor in tensors):
        return False
    item.embeds, *deepstack = [
        tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone(memory_format=torch.contiguous_format)
        for tensor in tensors
    ]
    item.deepstack = tuple(deepstack)
    return True
