"""What became of items, as metrics and spans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shared.errors import EpdError
from shared.lru import ByteLRU
from shared.telemetry import Metrics
from shared.tracing import Span, Tracer


class Tally:
    """Counts and times items on their path."""

    def __init__(self, metrics: Metrics, tracer: Tracer) -> None:
        self._tracer = tracer
        self._stages = metrics.histogram("epd_encoder_stage_seconds", "Time of one item in one stage.", "stage")
        self._items = metrics.counter("epd_encoder_items_total", "Items by outcome (ok, or an error's code).", "code")
        self.cancelled = metrics.counter(
            "epd_encoder_cancelled_total", "Items that were dropped because their call had ended, by stage.", "stage"
        )
        self.published = metrics.counter("epd_encoder_published_bytes_total", "Bytes of embeddings handed to receivers.")
        self.batches = metrics.histogram("epd_encoder_batch_items", "Items that the tower computed together.")
        self.busy = metrics.counter("epd_encoder_busy_seconds_total", "Seconds that the tower computed.")
        self.lookups = metrics.counter(
            "epd_encoder_cache_lookups_total",
            "Items by what a level of the cache spared them (media: decoding; embeddings: the tower): hit, miss, or joined "
            "where another item was at it.",
            "level",
            "outcome",
        )
        self.evictions = metrics.counter("epd_encoder_cache_evictions_total", "Entries that had to go for others.", "level")
        self._cache_bytes = metrics.gauge("epd_encoder_cache_bytes", "Bytes that a level of the cache keeps.", "level")
        self._cache_entries = metrics.gauge("epd_encoder_cache_entries", "Pictures that a level of the cache keeps.", "level")

    def watch(self, level: str, cache: ByteLRU[Any, Any]) -> None:
        """Tells from now on how full a level of the cache is."""
        self._cache_bytes.labels(level).set_function(lambda: cache.bytes)
        self._cache_entries.labels(level).set_function(lambda: len(cache))

    @contextmanager
    def item(self, last: bool = False) -> Iterator[None]:
        """Around what is done with one item: a failure is counted, and at the ``last`` of it success."""
        try:
            yield
        except Exception as error:
            self._items.labels(error.code if isinstance(error, EpdError) else "internal_error").inc()
            raise
        if last:
            self._items.labels("ok").inc()

    @contextmanager
    def stage(self, name: str, item: int) -> Iterator[Span]:
        """Around one stage of one item, of which it is the span; one that is cancelled there is counted."""
        with self._tracer.span(name, item=item) as span:
            try:
                yield span
            except asyncio.CancelledError:
                self.cancelled.labels(name).inc()
                raise

    def times(self, timings: Mapping[str, float]) -> None:
        """Observes the seconds that an item spent, by stage."""
        for stage, seconds in timings.items():
            self._stages.labels(stage).observe(seconds)
