"""Percentiles, and how sure one can be of their ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from services.loadtest.spans import Floats

RESAMPLES = 1000
CHUNK = 100
BLOCKS = 20


def percentile(values: Floats, share: float) -> float:
    """The nearest-rank percentile: the least value that at least ``share`` of all do not exceed; NaN of none."""
    if not len(values):
        return math.nan
    rank = max(1, math.ceil(share * len(values) - 1e-9))
    return float(np.partition(values, rank - 1)[rank - 1])


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two 99th percentiles, and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def p99_ratio(values: Floats, at: Floats, base: Floats, base_at: Floats) -> Ratio:
    """How the p99 of ``values``, measured at times ``at``, compares with that of ``base``.

    The interval is a block bootstrap's: whole seconds are drawn, not single values, since what comes together is slow together,
    and values by themselves would promise more certainty than there is. The same values always give the same interval.
    """
    rng = np.random.default_rng(20)
    over, under = _resampled(values, at, rng), _resampled(base, base_at, rng)
    low, high = np.quantile(over / under, (0.025, 0.975))
    return Ratio(percentile(values, 0.99) / percentile(base, 0.99), float(low), float(high))


def _resampled(values: Floats, at: Floats, rng: np.random.Generator) -> Floats:
    """p99 of ``RESAMPLES`` samples drawn with replacement, block by block of time."""
    width = max(1e-9, min(1.0, float(np.ptp(at)) / BLOCKS))
    _, block, sizes = np.unique(np.floor(at / width), return_inverse=True, return_counts=True)
    # Only the largest values can be a p99: of the rest, it is enough to know how many there are.
    top = np.argsort(-values)[: max(500, len(values) // 20)]
    found = []
    for _ in range(0, RESAMPLES, CHUNK):
        times = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=CHUNK)
        drawn = times @ sizes
        above = drawn - np.ceil(0.99 * drawn - 1e-9) + 1
        reached = np.cumsum(times[:, block[top]], axis=1) >= above[:, None]
        rows = np.where(reached.any(axis=1), reached.argmax(axis=1), len(top) - 1)
        found.append(values[top][rows])
    return np.concatenate(found)
