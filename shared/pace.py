"""How fast work gets done, as observed: the source of an honest ``Retry-After``."""

from __future__ import annotations

import time
from collections.abc import Callable

_WEIGHT = 0.1  # of the newest observation; a batch that ends together counts as one long and many short ones
_LONGEST = 60.0


class Pace:
    """Counts units of work that are open, and keeps a moving average of the seconds between two that end while there is work.

    That is the service time of the whole, whatever it does in parallel: ``n`` units more take about ``n`` times as long.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = 0.0
        self._seconds: float | None = None
        self.open = 0

    def begin(self, units: int = 1) -> None:
        """``units`` more are open."""
        if self.open == 0:
            self._since = self._clock()
        self.open += units

    def end(self, units: int = 1) -> None:
        """``units`` of them have ended."""
        now = self._clock()
        each = (now - self._since) / max(1, units)
        for _ in range(units):
            self._seconds = each if self._seconds is None else self._seconds + _WEIGHT * (each - self._seconds)
        self._since = now
        self.open -= units

    def time_for(self, units: int) -> float:
        """Seconds until ``units`` will have ended, between 1 and 60; 1 where nothing was observed yet."""
        return min(_LONGEST, max(1.0, units * (self._seconds or 0.0)))
