"""Embeddings that were here before, by what their pictures are known by, and those that somebody has asked for already."""

from __future__ import annotations

from collections.abc import Sequence

from services.language.prompt.conversation import MediaSource
from shared.flight import Flight, SingleFlight
from shared.identity import MediaItem
from shared.lru import ByteLRU
from shared.telemetry import Metrics

# The part of all bytes that is for digests, and what one takes with its content hash, in bytes.
_DIGESTS_PART = 16
_DIGEST_BYTES = 512
# Items up to so many bytes are copied: small tensors lie in buffers that can be many times their size.
_COPIED_BYTES = 256 * 1024


class EmbeddingCache:
    """Verified items by content hash, and content hashes by the digest of the bytes that they came from, in ``max_bytes`` of
    memory; with 0 nothing is kept, and nothing shared between requests. For one event loop only.

    A picture is known by the hash that its caller supplied, else by the digest of its bytes. One that has neither is never
    found, since what is behind its URL may have changed.
    """

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self._on = max_bytes > 0
        self._hashes: ByteLRU[str, str] = ByteLRU(max_bytes // _DIGESTS_PART)
        self._items: ByteLRU[str, MediaItem] = ByteLRU(max_bytes - self._hashes.max_bytes)
        lookups = metrics.counter(
            "epd_cache_lookups_total",
            "Pictures with an identity by what was found: hit, miss, or joined where another request was asking for it.",
            "outcome",
        )
        self._hit, self._missed = lookups.labels("hit"), lookups.labels("miss")
        self._flights: SingleFlight[str, MediaItem] = SingleFlight(lookups.labels("joined").inc)
        self._evictions = metrics.counter("epd_cache_evictions_total", "Embeddings that had to go for others.")
        metrics.gauge("epd_cache_bytes", "Bytes of embeddings kept for pictures that come again.").set_function(
            lambda: self._items.bytes
        )
        metrics.gauge("epd_cache_items", "Pictures whose embeddings are kept.").set_function(lambda: len(self._items))

    @property
    def empty(self) -> bool:
        """Whether nothing is known, nor being asked for."""
        return not len(self._items) and not len(self._flights)

    def find_all(self, sources: Sequence[MediaSource]) -> dict[int, MediaItem]:
        """The items of those pictures that were here before, by index. Their embeddings are everybody's, and not to be written
        to."""
        return {source.index: item for source in sources if (item := self.find(source)) is not None}

    def find(self, source: MediaSource) -> MediaItem | None:
        """The item of one picture."""
        known = source.supplied
        if known is None and source.digest is not None:
            known = self._hashes.get(source.digest)
        item = None if known is None else self._items.get(known)
        if item is None or item.modality != source.modality:
            return None
        self._hit.inc()
        return item.again()

    def keep(self, source: MediaSource, item: MediaItem) -> None:
        """Keeps the verified item of a picture that has an identity."""
        if source.identity is None or not self._on:
            return
        if source.supplied is None:
            self._hashes.put(source.identity, item.content_hash, _DIGEST_BYTES)
        if self._items.get(item.content_hash) is None:
            evicted = self._items.evicted
            self._items.put(item.content_hash, _compact(item), item.kept_bytes)
            self._evictions.inc(self._items.evicted - evicted)

    def follow(self, source: MediaSource) -> Flight[MediaItem] | None:
        """The flight of a picture that somebody is asking for now; None where nobody is."""
        return None if source.identity is None or not self._on else self._flights.follow(source.identity)

    def lead(self, source: MediaSource) -> Flight[MediaItem] | None:
        """A flight for a picture that is going to be asked for, to be landed or lost; None for one without an identity."""
        if source.identity is None or not self._on:
            return None
        self._missed.inc()
        return self._flights.lead(source.identity)


def _compact(item: MediaItem) -> MediaItem:
    """The same item, holding on to little more memory than its embeddings take."""
    kept = item.again()
    if kept.embeds is not None and kept.embedding_bytes <= _COPIED_BYTES:
        kept.embeds = kept.embeds.clone()
        kept.deepstack = tuple(level.clone() for level in kept.deepstack)
    return kept
