"""How figures are written, in verdicts and in reports alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def duration(seconds: float | None) -> str:
    """Seconds as a reader wants them: ``0.4 ms``, ``12 ms``, ``1.23 s``, ``8:20 min``, ``2:05:00 h``; a dash for none."""
    if seconds is None or math.isnan(seconds):
        return "–"
    size = abs(seconds)
    if size < 0.00995:
        return f"{seconds * 1000:.1f} ms" if size else "0 ms"
    if size < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if size < 99.95:
        return f"{seconds:.2f} s" if size < 9.995 else f"{seconds:.1f} s"
    whole = round(size)
    hours, minutes = divmod(whole // 60, 60)
    sign = "-" if seconds < 0 else ""
    return f"{sign}{hours}:{minutes:02}:{whole % 60:02} h" if hours else f"{sign}{minutes}:{whole % 60:02} min"


def limit(seconds: float) -> str:
    """A bound that somebody chose, as they would write it: ``250 ms``, ``4 s``, ``1.5 s``."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def percent(part: int, whole: int) -> str:
    """``part`` of ``whole`` in percent, cut and not rounded, so that only all are 100 %; a dash of nothing."""
    if not whole:
        return "–"
    return "100 %" if part == whole else f"{math.floor(part / whole * 10000) / 100:g} %"


def share(part: int, whole: int) -> str:
    """``1,199 of 1,200 (99.91 %)``."""
    return f"{part:,} of {whole:,} ({percent(part, whole)})" if whole else "none"


def many(number: int, what: str) -> str:
    """``1 request``, ``1,200 requests``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def some(sentences: Sequence[str], most: int = 5) -> str:
    """The first of some sentences, and how many more there are."""
    more = len(sentences) - most
    return " ".join([*sentences[:most], *([f"And {more:,} more."] if more > 0 else [])])


def listed(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} and {last}" if most else last
