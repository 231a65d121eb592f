"""The clock of a load test: the same for all processes of one machine, and never set back within one of them."""

from __future__ import annotations

import time


class Clock:
    """Seconds since the epoch, by the system's time when the process began and a steady counter from there on.

    Generators on several machines need synchronized clocks (NTP): their records are put on one time axis as they are.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.perf_counter()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._offset + time.perf_counter()

    def at(self, counter: float) -> float:
        """The same for a reading of ``time.perf_counter``."""
        return self._offset + counter
