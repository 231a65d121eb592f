"""A circuit breaker: an encoder that fails again and again gets one request, not all."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum


class Circuit(StrEnum):
    """Closed: everything passes. Open: nothing does. Half-open: one request does, as a probe, and decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens after ``failures`` in a row, or when told to; half-open ``pause`` seconds later; closes when a probe succeeds.

    The pause does not grow: what a probe costs is bounded by the liveness timeout, and recovery must be noticed soon.
    """

    def __init__(self, failures: int, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._pause = pause
        self._clock = clock
        self._in_a_row = 0
        self._opened: float | None = None
        self._probed: float | None = None  # when the probe that is under way entered

    @property
    def circuit(self) -> Circuit:
        """What it lets pass now."""
        if self._opened is None:
            return Circuit.CLOSED
        return Circuit.OPEN if self._clock() < self._opened + self._pause else Circuit.HALF_OPEN

    def admits(self) -> bool:
        """Whether a request may pass. A probe that takes long does not keep the next one out for longer than a pause."""
        return self._clock() >= self.admits_at()

    def admits_at(self) -> float:
        """From when on, by the clock, a request may pass; minus infinity where the circuit is closed."""
        if self._opened is None:
            return float("-inf")
        return max(self._opened, float("-inf") if self._probed is None else self._probed) + self._pause

    def enter(self) -> bool:
        """A request that was admitted passes; True if it is the probe. Each one ends by ``leave``."""
        if self.circuit is Circuit.CLOSED:
            return False
        self._probed = self._clock()
        return True

    def leave(self, probe: bool, ok: bool | None) -> None:
        """A request ended: well, badly, or (None) in a way that says nothing about the encoder."""
        if probe:
            self._probed = None
        if ok:
            self._in_a_row = 0
            if probe:
                self._opened = None
        elif ok is False:
            self._in_a_row += 1
            if probe or (self._opened is None and self._in_a_row >= self._failures):
                self.trip()

    def trip(self) -> None:
        """Opens now."""
        self._opened = self._clock()
