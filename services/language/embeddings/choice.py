"""Which encoder gets which item: the same picture goes to the same encoder, unless that one has more than its share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

import xxhash

# How far above the mean an encoder's load may be before its items go to the next one (Mirrokni, Thorup, Zadimoghaddam:
# Consistent Hashing with Bounded Loads, 2016).
BALANCE = 1.25


class Candidate(Protocol):
    """An encoder with room. ``load`` and ``capacity`` count items."""

    @property
    def url(self) -> str: ...
    @property
    def load(self) -> int: ...
    @property
    def capacity(self) -> int: ...


C = TypeVar("C", bound=Candidate)


def choose(key: bytes | None, candidates: Sequence[C]) -> C:
    """The encoder for an item with the identity ``key``: the first by rendezvous among those within their bounded share.

    Weighted by capacity (Schindelhauer and Schomaker, 2005): when an encoder joins or leaves, only items that it gets or had
    move. Without a key it is the least loaded one.
    """
    if key is None:
        return min(candidates, key=lambda candidate: candidate.load / candidate.capacity)
    capacity = sum(candidate.capacity for candidate in candidates)
    load = 1 + sum(candidate.load for candidate in candidates)

    def within(candidate: C) -> bool:
        return candidate.load < math.ceil(BALANCE * load * candidate.capacity / capacity)

    # At least one is within its bound, since the bounds add up to more than the load.
    return max((candidate for candidate in candidates if within(candidate)), key=lambda candidate: score(key, candidate))


def score(key: bytes, candidate: Candidate) -> float:
    """How much an item belongs to an encoder; the same in every process, in any order of start."""
    drawn = (xxhash.xxh3_64_intdigest(candidate.url.encode() + b"\0" + key) + 1) / (2**64 + 1)
    return -candidate.capacity / math.log(drawn)
