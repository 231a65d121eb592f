"""The line that tells how far a load test is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TextIO

from services.loadtest.run import End, Record

_PAUSE = 5.0  # seconds between lines where they cannot be written over


class Progress:
    """One line a tick, written over the last one on a terminal; elsewhere, a line every five seconds and at each new phase."""

    def __init__(self, stream: TextIO, lasts: float, phase: Callable[[float], str]) -> None:
        self._stream = stream
        self._lasts = lasts
        self._phase = phase
        self._counts: Counter[str] = Counter()
        self._shown = -_PAUSE
        self._last = ""
        self._over = stream.isatty()
        self._width = 0

    def count(self, records: Iterable[Record]) -> None:
        """These requests have ended."""
        self._counts.update(map(_kind, records))

    def tick(self, at: float) -> None:
        """Shows where the run is, ``at`` seconds after the load began."""
        phase = self._phase(at)
        if not self._over and phase == self._last and at - self._shown < _PAUSE:
            return
        self._shown, self._last = at, phase
        counts = "  ".join(f"{name} {number}" for name, number in sorted(self._counts.items()))
        line = f"{at:6.1f} of {self._lasts:g} s  {phase:<32}  {counts}"
        self._stream.write(f"\r{line.ljust(self._width)}" if self._over else f"{line}\n")
        self._stream.flush()
        self._width = len(line)

    def end(self) -> None:
        """The line stays; what comes next begins another."""
        if self._over and self._width:
            self._stream.write("\n")
            self._stream.flush()


def _kind(record: Record) -> str:
    if record.end is not End.ANSWERED:
        return str(record.end)
    return str(record.status) if record.code in ("ok", "") else f"{record.status} {record.code}"
