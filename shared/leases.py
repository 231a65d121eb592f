"""How a receiver tells a sender, without a message, that it needs memory no more: words in a ledger that both have mapped.

A word holds the generation of the lease it is used for now, and how far that lease has got. The sender writes it when it lends
memory, the receiver when it has taken the memory over, and again when it is done. Aligned words are stored and loaded as a
whole, and only one side has a reason to write at a time; what a generation does not fit is ignored.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

import numpy as np

from shared.control import Memory
from shared.memory import MemoryUnreachable, Segment, attach
from shared.wire import Lease

SLOTS = 4096
_WORD = 8
_PROGRESS = np.uint64(3)


class Progress(IntEnum):
    """How far a lease has got."""

    LENT = 0
    TAKEN = 1
    RETURNED = 2


class Ledger:
    """The sender's side: lends words, and looks how far they got."""

    def __init__(self, name: str, slots: int = SLOTS) -> None:
        self._segment = Segment(name, slots * _WORD)
        self._words = np.frombuffer(self._segment.buffer, np.uint64)
        # First in, first out: a word rests for long before it stands for another lease.
        self._free = deque(range(slots))
        self._generation = 0

    def lend(self) -> Lease | None:
        """A lease that nothing has become of yet; None where all words are in use."""
        if not self._free:
            return None
        slot = self._free.popleft()
        self._generation += 1
        self._words[slot] = self._generation << 2 | Progress.LENT
        return Lease(ledger=self._segment.memory, slot=slot, generation=self._generation)

    def progress(self, lease: Lease) -> Progress:
        """How far a lease has got that was not ended."""
        word = int(self._words[lease.slot])
        return Progress(word & 3) if word >> 2 == lease.generation else Progress.LENT

    def returned(self) -> list[int]:
        """The slots whose leases were returned."""
        return np.flatnonzero((self._words & _PROGRESS) == Progress.RETURNED).tolist()

    def end(self, lease: Lease) -> None:
        """The word can be used for another lease; what is said of this one is ignored from now on."""
        self._words[lease.slot] = 0
        self._free.append(lease.slot)

    def close(self) -> None:
        self._segment.close()


class LedgerView:
    """The receiver's side. Says nothing of leases that have ended."""

    def __init__(self, memory: Memory) -> None:
        if memory.size % _WORD:
            raise MemoryUnreachable("it is no ledger")
        self._words = np.frombuffer(attach(memory, writable=True), np.uint64)

    def take(self, lease: Lease) -> None:
        """The receiver has the memory open.

        Raises:
            MemoryUnreachable: the lease has ended, or is taken already.
        """
        if not self._move(lease, Progress.LENT, Progress.TAKEN):
            raise MemoryUnreachable("its lease has ended")

    def give_back(self, lease: Lease) -> None:
        """The receiver needs the memory no more, or never did."""
        if not self._move(lease, Progress.TAKEN, Progress.RETURNED):
            self.decline(lease)

    def decline(self, lease: Lease) -> None:
        """The receiver will not take the memory; nothing where it has, by another message with the same lease."""
        self._move(lease, Progress.LENT, Progress.RETURNED)

    def _move(self, lease: Lease, before: Progress, after: Progress) -> bool:
        if lease.slot >= len(self._words) or int(self._words[lease.slot]) != lease.generation << 2 | before:
            return False
        self._words[lease.slot] = lease.generation << 2 | after
        return True
