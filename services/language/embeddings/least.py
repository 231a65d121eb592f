"""The least loaded of many encoders, found without looking at them all."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container
from typing import Generic, TypeVar

M = TypeVar("M")


class LeastLoaded(Generic[M]):
    """A heap of members by load. Each change puts a new entry in; old ones are thrown away when they come to the top, or when
    they outnumber the members. Of several that are equally loaded, the one comes first whose load has changed least recently.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, M]] = []
        self._valid: dict[M, int] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._valid)

    def put(self, member: M, load: float) -> None:
        """Adds a member, or gives it another load."""
        number = self._valid[member] = next(self._numbers)
        heapq.heappush(self._heap, (load, number, member))
        if len(self._heap) > 2 * len(self._valid) + 64:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def remove(self, member: M) -> None:
        """Removes a member."""
        del self._valid[member]

    def first(self, avoiding: Container[M] = ()) -> M:
        """The least loaded member that is not among those to avoid.

        Raises:
            IndexError: there is none.
        """
        avoided: list[tuple[float, int, M]] = []
        try:
            while not self._is_valid(self._heap[0]) or self._heap[0][2] in avoiding:
                entry = heapq.heappop(self._heap)
                if self._is_valid(entry):
                    avoided.append(entry)
            return self._heap[0][2]
        finally:
            for entry in avoided:
                heapq.heappush(self._heap, entry)

    def _is_valid(self, entry: tuple[float, int, M]) -> bool:
        return self._valid.get(entry[2]) == entry[1]
