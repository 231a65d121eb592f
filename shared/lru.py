"""A cache bounded by bytes: the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteLRU(Generic[K, V]):
    """Values by key, with their sizes in bytes. ``evicted`` counts those that had to go for others; for one event loop only."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.evicted = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, which counts as used now; None where there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keeps a value of ``size`` bytes, in place of one that the key had; not at all where it alone is too large."""
        self.discard(key)
        if size > self.max_bytes:
            return
        self._entries[key] = (value, size)
        self.bytes += size
        while self.bytes > self.max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.bytes -= freed
            self.evicted += 1

    def __iter__(self) -> Iterator[K]:
        """All keys, the least recently used first."""
        return iter(self._entries)

    def discard_all(self, which: Callable[[K], bool]) -> None:
        """Forgets all keys that ``which`` says so of."""
        for key in [key for key in self._entries if which(key)]:
            self.discard(key)

    def discard(self, key: K) -> None:
        """Forgets a key, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]
