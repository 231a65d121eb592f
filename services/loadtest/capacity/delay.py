"""Distributions of delays: sums of fixed times and waits, and the longest of several, for percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_POINTS = 4096
_MEANS = 16.0
"""How many of the waits' means, added up, a grid is long: e^-16 of an exponential lies beyond it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait in a queue: with ``chance`` there is one at all, and then it is exponential. ``mean`` is of both cases together,
    in seconds. Exact for M/M/c; for others the usual approximation (Kingman's, by which waits under load are exponential)."""

    mean: float
    chance: float

    @property
    def longest(self) -> float:
        """The mean of those that there are."""
        return self.mean / self.chance if self.mean else 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Delay:
    """A distribution: ``fixed`` seconds, and what the grid says past them, in steps of ``step`` seconds."""

    fixed: float
    step: float
    mass: NDArray[np.float64]

    @classmethod
    def of(cls, fixed: float, waits: Iterable[Wait], step: float) -> Delay:
        """``fixed`` seconds and independent waits."""
        mass = np.zeros(_POINTS)
        mass[0] = 1.0
        for wait in waits:
            if wait.mean:
                ends = np.exp(-step * np.arange(_POINTS) / wait.longest)
                grid = wait.chance * (ends - np.append(ends[1:], 0.0))
                grid[0] += 1 - wait.chance
                mass = _added(mass, grid)
        return cls(fixed, step, mass)

    def then(self, other: Delay) -> Delay:
        """This one and another after it; on grids of the same step."""
        return Delay(self.fixed + other.fixed, self.step, _added(self.mass, other.mass))

    def unless(self, share: float) -> Delay:
        """No delay at all with a chance of ``share``, else this one."""
        shift = min(_POINTS - 1, round(self.fixed / self.step))
        mass = np.zeros(_POINTS)
        mass[shift:] = (1 - share) * self.mass[: _POINTS - shift]
        mass[-1] += max(0.0, 1 - share - mass.sum())
        mass[0] += share
        return Delay(0.0, self.step, mass)

    def longest_of(self, count: int) -> Delay:
        """The longest of ``count`` that are alike and independent."""
        below = np.minimum(1.0, np.cumsum(self.mass)) ** count
        below[-1] = 1.0
        return Delay(self.fixed, self.step, np.diff(below, prepend=0.0))

    @property
    def mean(self) -> float:
        """In seconds."""
        # A wait is in the middle of its cell, but for none at all, which is in the first.
        at = self.step * (np.arange(_POINTS) + 0.5)
        at[0] = 0.0
        return self.fixed + float(at @ self.mass)

    def percentile(self, share: float) -> float:
        """The time that a ``share`` of all do not exceed, in seconds."""
        return percentile([(1.0, self)], share)


def percentile(parts: Iterable[tuple[float, Delay]], share: float) -> float:
    """The same of a mixture: delays with their shares, which add up to 1."""
    parts = list(parts)
    times = np.concatenate([each.fixed + each.step * np.arange(_POINTS) for _, each in parts])
    mass = np.concatenate([weight * each.mass for weight, each in parts])
    order = np.argsort(times, kind="stable")
    reached = np.cumsum(mass[order]) >= share - 1e-9
    return float(times[order][int(reached.argmax())]) if reached.any() else math.inf


def step_of(fixed: float, waits: Iterable[Wait]) -> float:
    """The step of a grid on which these fit: fixed times that may be left out (``unless``), and waits."""
    length = 2 * fixed + _MEANS * sum(wait.longest for wait in waits)
    return length / _POINTS if length else 1.0


def _added(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    size = 2 * _POINTS
    whole = np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(right, size), size)
    mass = np.maximum(whole[:_POINTS], 0.0)
    mass[-1] += max(0.0, 1.0 - mass.sum())
    return np.asarray(mass)
