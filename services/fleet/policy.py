"""How many encoders there should be, from what those that there are tell of their load.

Serve carries this module to its controller by value, so it needs nothing but the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

ITEMS, WAITING, WAIT, BUSY = "epd_items", "epd_waiting", "epd_wait_seconds", "epd_busy"
"""What a replica tells, by the names in ``Load``'s order."""

# An encoder goes when those that stay would still have this share of what each should have at most.
_ROOM = 0.7
# Where one round may lead to at most, as a multiple of what there is.
_GROWTH = 2.0


@dataclass(frozen=True)
class Load:
    """One encoder's, on average over the last seconds: items in work, those of them that wait for the tower, seconds that an
    item waited for it, and the share of the time that the tower computed."""

    items: float
    waiting: float
    wait_seconds: float
    busy: float


@dataclass(frozen=True)
class Targets:
    """What one encoder should have at most, and how many there may be."""

    items: float
    wait_seconds: float
    busy: float
    least: int
    most: int


def desired(loads: Sequence[Load], planned: int, targets: Targets) -> int:
    """The number of encoders that the load asks for, where ``planned`` are there or about to be.

    More as soon as any sign asks for it, and twice as many at most; fewer only one at a time, and only where the others would
    have room to spare, so that the number does not swing. Without a word from any it stays.
    """
    if loads:
        there = len(loads)
        by_items = sum(load.items for load in loads) / targets.items
        by_busy = sum(load.busy for load in loads) / targets.busy
        # Items wait where there are too few towers: as many times too few as they wait too long.
        waiting = [load.wait_seconds for load in loads if load.waiting > 0]
        by_wait = there * sum(waiting) / len(loads) / targets.wait_seconds if waiting else 0.0
        needed = max(by_items, by_busy, by_wait)
        if needed > there:
            planned = max(planned, min(math.ceil(needed), math.ceil(there * _GROWTH)))
        elif needed <= _ROOM * (planned - 1):
            planned -= 1
    return min(max(planned, targets.least), targets.most)


class EncoderPolicy:
    """``desired`` as Serve's autoscaling policy; Serve itself lets time pass before it acts (``upscale_delay_s``,
    ``downscale_delay_s``). The arguments are those of ``Targets``."""

    def __init__(self, **targets: Any) -> None:
        self._targets = targets

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        told = context.aggregated_metrics or {}
        columns = [told.get(name, {}) for name in (ITEMS, WAITING, WAIT, BUSY)]
        complete = set(columns[0]).intersection(*columns[1:])
        loads = [Load(*(column[replica] for column in columns)) for replica in complete]
        bounds = {"least": context.capacity_adjusted_min_replicas, "most": context.capacity_adjusted_max_replicas}
        return desired(loads, context.target_num_replicas, Targets(**self._targets, **bounds)), {}
