"""Where the time of one request went."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from shared.identity import Modality

Source = Literal["language", "shared", "computed", "encoder"]
"""Where an item's embeddings came from: this service's cache, another request that was asking for them, an encoder that
computed them, or its cache."""


@dataclass(frozen=True, slots=True)
class ItemTime:
    """One item: its ``tokens`` in the prompt, and the seconds that the encoder spent on it by stage. ``wire`` is what else
    passed until its embeddings were here and verified; both are empty where nothing was asked for."""

    index: int
    modality: Modality
    tokens: int
    source: Source
    encoder_id: str | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    wire: float | None = None


@dataclass(slots=True)
class Timeline:
    """Seconds by stage, in the order in which the stages are passed, and the items. ``queue``, ``prefill`` and ``decode`` are
    the engine's: until it began with the prompt, until the first token, and until the last."""

    stages: dict[str, float] = field(default_factory=dict)
    items: list[ItemTime] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Around one stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - began
