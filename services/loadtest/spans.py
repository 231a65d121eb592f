"""Spans of time: sorted, disjoint, in an array with a row ``(begin, end)`` each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def union(pairs: Iterable[tuple[float, float]]) -> Floats:
    """The time that at least one of some spans covers. Spans that end before they begin cover none."""
    found: list[list[float]] = []
    for begin, end in sorted(pair for pair in pairs if pair[1] >= pair[0]):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def intersection(left: Floats, right: Floats) -> Floats:
    """The time that both cover; moments without length are none."""
    overlaps = (
        (float(max(a[0], b[0])), float(min(a[1], b[1])))
        for a in left
        for b in right[np.searchsorted(right[:, 1], a[0]) : np.searchsorted(right[:, 0], a[1])]
    )
    return union(pair for pair in overlaps if pair[1] > pair[0])


def touched(spans: Floats, begins: Floats, ends: Floats) -> Mask:
    """Which of some times from ``begins`` to ``ends`` have a moment in common with any span, ends included."""
    if not len(spans):
        return np.zeros(len(begins), dtype=np.bool_)
    first = np.searchsorted(spans[:, 1], begins, side="left")
    known = np.minimum(first, len(spans) - 1)
    return np.asarray((first < len(spans)) & (spans[known, 0] <= ends), dtype=np.bool_)


def end_of(spans: Floats, at: Floats) -> Floats:
    """For each moment, the end of the span that it is in, begin included and end not; NaN where it is in none."""
    if not len(spans):
        return np.full(len(at), np.nan)
    last = np.searchsorted(spans[:, 0], at, side="right") - 1
    known = np.maximum(last, 0)
    return np.where((last >= 0) & (at < spans[known, 1]), spans[known, 1], np.nan)
