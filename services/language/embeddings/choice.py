"""Which encoder gets which item: the same picture goes to the same encoder, unless that one has more than its share."""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import islice
from typing import Generic, Protocol, TypeVar

from services.language.embeddings.least import LeastLoaded
from services.language.embeddings.ring import Ring

# How far above the mean an encoder's load may be before its items go to the next one (Mirrokni, Thorup, Zadimoghaddam:
# Consistent Hashing with Bounded Loads, 2016).
BALANCE = 1.25
# Encoders that are looked at for an item. While no more than four fifths of all places are taken, a fifth of the encoders are
# within their bounds, so that more are hardly ever needed; beyond that all are busy, and the least loaded is as good.
_MOST_LOOKS = 32


class Candidate(Protocol):
    """An encoder that may be asked. ``load`` and ``capacity`` count items."""

    @property
    def url(self) -> str: ...
    @property
    def load(self) -> int: ...
    @property
    def capacity(self) -> int: ...


C = TypeVar("C", bound=Candidate)


class Choice(Generic[C]):
    """Chooses among the candidates that were put in, at a cost that does not grow with their number but for its logarithm.

    It knows loads and capacities as of the last ``put``; whoever changes them puts the candidate in again.
    """

    def __init__(self) -> None:
        self._known: dict[C, tuple[int, int]] = {}
        self._ring: Ring[C] = Ring()
        self._least: LeastLoaded[C] = LeastLoaded()
        self._load = 0
        self._capacity = 0
        self._room = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, candidate: C) -> bool:
        return candidate in self._known

    def put(self, candidate: C) -> None:
        """Adds a candidate, or notes its load and capacity anew."""
        now = candidate.load, candidate.capacity
        before = self._known.get(candidate)
        if now == before:
            return
        if before is None or before[1] != now[1]:
            self._ring.put(candidate, candidate.url, candidate.capacity)
        self._known[candidate] = now
        self._count(now, 1)
        if before is not None:
            self._count(before, -1)
        self._least.put(candidate, now[0] / now[1])

    def remove(self, candidate: C) -> None:
        """Takes a candidate out, if it is in."""
        if candidate in self._known:
            self._count(self._known.pop(candidate), -1)
            self._ring.remove(candidate)
            self._least.remove(candidate)

    def without(self, avoiding: Collection[C]) -> tuple[int, int]:
        """How many candidates there are besides those to avoid, and for how many items these have room."""
        avoided = [self._known[candidate] for candidate in avoiding if candidate in self._known]
        return len(self._known) - len(avoided), self._room - sum(_room(*each) for each in avoided)

    def choose(self, key: bytes) -> C:
        """The candidate for an item with the identity ``key``: the first on the ring that is within its bounded share. When
        one joins or leaves, only items that it gets or had move.

        Somebody must have room.
        """
        for candidate in islice(self._ring.walk(key), _MOST_LOOKS):
            load, capacity = self._known[candidate]
            if load < min(capacity, math.ceil(BALANCE * (self._load + 1) * capacity / self._capacity)):
                return candidate
        return self._least.first()

    def least_loaded(self, avoiding: Collection[C]) -> C:
        """The candidate with the least load by its capacity, besides those to avoid. There must be one, and it has room if any
        of them has."""
        return self._least.first(avoiding)

    def _count(self, known: tuple[int, int], sign: int) -> None:
        self._load += sign * known[0]
        self._capacity += sign * known[1]
        self._room += sign * _room(*known)


def _room(load: int, capacity: int) -> int:
    return max(0, capacity - load)
