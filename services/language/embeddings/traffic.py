"""How often encoders are looked at, and show life: often while they are few, and never so often that it costs much.

Without bounds, a thousand encoders would be looked at 2,000 times a second, register 1,000 times, and send 4,000 signs of life.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# A look takes each end about a millisecond. So many a second are not passed for long, whatever happens to how many encoders;
# those that are due by the clock are half as many.
_LOOKS_PER_SECOND = 200.0
_LOOKS_AT_ONCE = 100
# Signs of life: so many a second are not passed, as long as there are enough in each liveness timeout, since one may be late.
_SIGNS_PER_SECOND = 2000.0
_MOST_SIGNS = 8
_FEWEST_SIGNS = 4
# Silence for as long as so many signs take is suspect.
_MISSED = 3
_LONGEST_ROUND = 15.0  # seconds between two registrations, within those after which one that is silent is forgotten


class Traffic:
    """Spreads what is said between a language service and its encoders over time. ``interval`` is the time in seconds between
    two looks at an encoder, where they are few; ``timeout`` is the one for their signs of life."""

    def __init__(self, interval: float, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._timeout = timeout
        self._clock = clock
        self._free_at = float("-inf")

    def pause(self, encoders: int) -> float:
        """Seconds between two looks at one of so many encoders."""
        return max(self._interval, 2 * encoders / _LOOKS_PER_SECOND)

    def round(self, encoders: int) -> float:
        """Seconds after which one of so many encoders shall register again."""
        return min(_LONGEST_ROUND, 2 * encoders / _LOOKS_PER_SECOND)

    def beat(self, encoders: int) -> float:
        """Seconds between two signs of life of one of so many encoders."""
        affordable = _SIGNS_PER_SECOND * self._timeout / max(1, encoders)
        return self._timeout / min(_MOST_SIGNS, max(_FEWEST_SIGNS, affordable))

    def suspect(self, encoders: int) -> float:
        """Seconds of silence after which one of so many encoders is looked at."""
        return _MISSED * self.beat(encoders)

    async def turn(self) -> None:
        """Returns when the next look may begin: at once, unless there were many lately."""
        now = self._clock()
        self._free_at = max(self._free_at, now - _LOOKS_AT_ONCE / _LOOKS_PER_SECOND) + 1 / _LOOKS_PER_SECOND
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
