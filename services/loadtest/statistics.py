"""Percentiles, and whether two differ by more than chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.loadtest.spans import Floats

SHUFFLES = 2000
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
    """A ratio of two 99th percentiles, and how likely one so large is by chance, were the true one ``bound``."""

    value: float
    chance: float


def p99_ratio(values: Floats, at: Floats, base: Floats, base_at: Floats, bound: float) -> Ratio:
    """How the p99 of ``values``, measured at times ``at``, compares with that of ``base``.

    The chance is a permutation test's: ``base``, made ``bound`` times as large, would be like ``values``, and so it would not
    matter which is which. Whole seconds are exchanged, not single values, since what comes together is slow together. Unlike an
    interval by resampling, this does not take the few values of a short calm for all that there can be. The same values always
    give the same chance.
    """
    width = max(1e-9, min(1.0, float(np.ptp(at)) / BLOCKS, float(np.ptp(base_at)) / BLOCKS))
    blocks, block, sizes = _blocks(np.floor(at / width), np.floor(base_at / width))
    pooled = np.concatenate([values, base * bound])
    ours = np.arange(len(sizes)) < blocks
    # Only the largest values can be a p99: of the rest, it is enough to know how many there are.
    top = np.argsort(-pooled)[: max(500, len(pooled) // 20)]
    rng = np.random.default_rng(20)
    seen = _ratios(pooled[top], block[top], sizes, ours[None, :])[0]
    ratios = [
        _ratios(pooled[top], block[top], sizes, rng.permuted(np.tile(ours, (CHUNK, 1)), axis=1))
        for _ in range(0, SHUFFLES, CHUNK)
    ]
    larger = int((np.concatenate(ratios) >= seen * (1 - 1e-9)).sum())
    return Ratio(percentile(values, 0.99) / percentile(base, 0.99), (1 + larger) / (1 + SHUFFLES))


def _blocks(left: Floats, right: Floats) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """How many different numbers are on the left; for each place the number of its block, left ones first; blocks' sizes."""
    first, block, sizes = np.unique(left, return_inverse=True, return_counts=True)
    _, others, more = np.unique(right, return_inverse=True, return_counts=True)
    return len(first), np.concatenate([block, others + len(first)]), np.concatenate([sizes, more])


def _ratios(top: Floats, block: NDArray[np.int64], sizes: NDArray[np.int64], ours: NDArray[np.bool_]) -> Floats:
    """p99 of the blocks that are ours over that of the others, in each row of ``ours``. ``top`` are the largest values."""
    found = []
    for chosen in (ours, ~ours):
        drawn = chosen @ sizes
        above = drawn - np.ceil(0.99 * drawn - 1e-9) + 1
        reached = np.cumsum(chosen[:, block], axis=1) >= above[:, None]
        found.append(top[np.where(reached.any(axis=1), reached.argmax(axis=1), len(top) - 1)])
    return np.asarray(found[0] / found[1])
