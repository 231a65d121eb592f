"""The one deadline of a request, carried from its arrival to its last token."""

from __future__ import annotations

import time


class Deadline:
    """``seconds`` from now. ``own`` says that it is the service's, not one that the caller wished to be sooner."""

    def __init__(self, seconds: float, own: bool = True) -> None:
        self.seconds = seconds
        self.own = own
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then; negative past it."""
        return self._at - time.monotonic()

    def lowered(self, seconds: float, own: bool) -> Deadline:
        """The sooner of this one and ``seconds`` from now."""
        return self if seconds >= self.left() else Deadline(seconds, own)
