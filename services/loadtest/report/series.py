"""What is drawn over time, in bins that a screen can show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.loadtest.columns import Columns
from services.loadtest.spans import Floats, Mask
from services.loadtest.statistics import percentile

WIDTHS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
MOST_BINS = 160
FEWEST_IN_BIN = 20
"""Below so many, a percentile of a bin says little."""


@dataclass(frozen=True, slots=True)
class Bins:
    """The time of a run in equal parts."""

    width: float
    count: int

    @classmethod
    def over(cls, seconds: float, most: int = MOST_BINS, least: float = 0.5) -> Bins:
        width = next(
            (float(width) for width in WIDTHS if width >= least and seconds / width <= most), max(WIDTHS[-1], seconds / most)
        )
        return cls(width, max(1, int(np.ceil(seconds / width - 1e-9))))

    @classmethod
    def filled(cls, seconds: float, values: int) -> Bins:
        """Bins so wide that they hold some tens of values each, where the whole has so many."""
        wanted = min(MOST_BINS, max(20, values // FEWEST_IN_BIN))
        return cls.over(seconds, wanted)

    @property
    def starts(self) -> Floats:
        return np.arange(self.count, dtype=np.float64) * self.width

    @property
    def middles(self) -> Floats:
        return self.starts + self.width / 2

    def of(self, at: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The bin of each moment; the last one for what is later than all."""
        return np.clip((at / self.width).astype(np.int64), 0, self.count - 1)

    def per_second(self, at: Floats) -> Floats:
        """How many a second there were."""
        return np.bincount(self.of(at), minlength=self.count) / self.width

    def percentiles(self, at: Floats, values: Floats, share: float) -> Floats:
        """The percentile in each bin, NaN where it is empty."""
        where = self.of(at)
        order = np.argsort(where, kind="stable")
        parts = np.split(values[order], np.searchsorted(where[order], np.arange(1, self.count)))
        return np.array([percentile(part, share) for part in parts])


def ways(columns: Columns) -> dict[str, Mask]:
    """How requests ended, each in one way, as they are stacked: from what is well to what must not be."""
    answered, status, code = columns.due & columns.answered, columns.status, columns.code
    event = answered & (status == 200) & (code != "ok")
    found = {
        "200": answered & (status == 200) & ~event & ~columns.wrong,
        "400": answered & (status == 400),
    }
    refused = answered & (status == 503)
    found |= {f"503 {name or 'without code'}": refused & (code == name) for name in sorted(set(code[refused].tolist()))}
    found["error in a stream"] = event
    found["other status"] = answered & ~np.isin(status, (200, 400, 503))
    found["200, but wrong"] = answered & ~event & columns.wrong
    found["no answer"] = columns.due & ~columns.answered
    return {name: mask for name, mask in found.items() if mask.any()}


def open_at_once(columns: Columns, bins: Bins) -> Floats:
    """The most requests that were open at once, in each bin."""
    at = np.concatenate([columns.sent, columns.ended])
    step = np.concatenate([np.ones(len(columns.sent)), -np.ones(len(columns.ended))])
    order = np.lexsort((-step, at))
    at, level = at[order], np.cumsum(step[order])
    edges = np.searchsorted(at, bins.starts)
    before = np.where(edges > 0, level[np.maximum(edges - 1, 0)], 0.0) if len(level) else np.zeros(bins.count)
    most = before.copy()
    if len(at):
        np.maximum.at(most, bins.of(at), level)
    return most


def spread(chosen: Mask, badness: Floats, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """At most about ``most`` of some rows: the worst tenth part, and evenly some of the others."""
    rows = np.flatnonzero(chosen)
    if len(rows) <= most:
        return rows
    worst = rows[np.argsort(-badness[rows], kind="stable")[: most // 10]]
    return np.union1d(worst, rows[:: -(-len(rows) // (most - most // 10))])
