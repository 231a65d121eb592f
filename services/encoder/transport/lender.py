"""Memory that is lent to receivers for one message each, and comes back when they are done with it."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from shared.leases import Ledger, Progress
from shared.wire import Lease, Place

ALIGNMENT = 64  # bytes

# Bytes that may be on their way to one receiver, or messages if these are more: past both, memory that comes back soon is
# quicker than more memory.
_AHEAD_BYTES, _AHEAD = 32 * 2**20, 3
# Seconds after which a message whose memory nobody took counts as lost.
_LOST_AFTER = 60.0


class Block(Protocol):
    """A piece of memory that tensors can be put into, of so many bytes."""

    @property
    def size(self) -> int: ...

    def place(self, tensors: Mapping[str, Tensor], lease: Lease) -> Place:
        """Copies the tensors there, and says where that is. Slow, so not for the event loop.

        Raises:
            OSError: the system has no memory left.
        """
        ...


class Allocator(Protocol):
    """Where blocks come from. For one event loop only."""

    @property
    def receivers_keep(self) -> bool:
        """Whether receivers may keep a block for as long as they like, and have it even when it is discarded here."""
        ...

    @property
    def bytes(self) -> int:
        """What there is of it, lent or free."""
        ...

    def allocate(self, size: int) -> Block | None:
        """A block of at least ``size`` bytes; None where there is no room now.

        Raises:
            ValueError: so much will never fit.
        """
        ...

    def free(self, block: Block) -> None:
        """Nobody looks at a block any more."""

    def discard(self, block: Block) -> None:
        """Somebody may still look at a block: it is not to be written again."""

    def tidy(self, now: float) -> None:
        """Lets go of what was not needed for long."""

    def close(self) -> None:
        """Lets go of everything."""


@dataclass(eq=False, frozen=True, slots=True)
class Loan:
    """A block on its way to ``endpoint``, or in use there, since a time of the clock."""

    endpoint: str
    block: Block
    lease: Lease
    since: float

    def place(self, tensors: Mapping[str, Tensor]) -> Place:
        """Copies the tensors to where they are lent; see ``Block.place``."""
        return self.block.place(tensors, self.lease)


class Lender:
    """Lends blocks, and takes them back. For one event loop only.

    Where there is no room, blocks that receivers have taken and may keep are left to them, the oldest first.
    """

    def __init__(self, ledger: Ledger, allocator: Allocator, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._allocator = allocator
        self._clock = clock
        self._loans: dict[int, Loan] = {}  # by slot, the oldest first
        self._underway: defaultdict[str, deque[Loan]] = defaultdict(deque)  # by endpoint, until seen to be taken

    def __len__(self) -> int:
        """Blocks that are lent."""
        return len(self._loans)

    @property
    def bytes(self) -> int:
        """Memory that is lent or free."""
        return self._allocator.bytes

    def lend(self, endpoint: str, size: int) -> Loan | None:
        """Memory of at least ``size`` bytes; None where there is no room now.

        Raises:
            ValueError: so much will never fit.
        """
        self._take_back()
        if self._is_ahead(endpoint):
            return None
        while (block := self._allocator.allocate(size)) is None:
            if not self._leave_oldest():
                return None
        while (lease := self._ledger.lend()) is None:
            if not self._leave_oldest():
                self._allocator.free(block)
                return None
        loan = self._loans[lease.slot] = Loan(endpoint, block, lease, self._clock())
        self._underway[endpoint].append(loan)
        return loan

    def withdraw(self, loan: Loan, written: bool = True) -> None:
        """The message of a loan was not sent. Unless its tensors are ``written``, somebody may still be about it."""
        if self._loans.get(loan.lease.slot) is loan:
            untouched = self._ledger.progress(loan.lease) is Progress.LENT
            self._end(loan, again=written and untouched)

    def forget(self, endpoint: str) -> None:
        """Nobody listens at ``endpoint`` any more; whoever did may still look at what was lent there."""
        for loan in [loan for loan in self._loans.values() if loan.endpoint == endpoint]:
            self._end(loan, again=False)
        self._underway.pop(endpoint, None)

    def tidy(self) -> None:
        """Takes back what was returned, and lets go of what is lost or was not needed for long; to be called now and then."""
        self._take_back()
        now = self._clock()
        for loan in list(self._loans.values()):
            if now - loan.since <= _LOST_AFTER:
                break
            if self._ledger.progress(loan.lease) is Progress.LENT:
                self._end(loan, again=False)
        self._allocator.tidy(now)

    def close(self) -> None:
        """Lets go of everything."""
        for loan in list(self._loans.values()):
            self._end(loan, again=False)
        self._allocator.close()
        self._ledger.close()

    def _is_ahead(self, endpoint: str) -> bool:
        """Whether so much is on its way to a receiver that the next message had better wait."""
        underway = self._underway[endpoint]
        while underway and not self._is_underway(underway[0]):
            underway.popleft()
        waiting = [loan.block.size for loan in underway if self._is_underway(loan)]
        return len(waiting) >= _AHEAD and sum(waiting) >= _AHEAD_BYTES

    def _is_underway(self, loan: Loan) -> bool:
        return self._loans.get(loan.lease.slot) is loan and self._ledger.progress(loan.lease) is Progress.LENT

    def _take_back(self) -> None:
        for slot in self._ledger.returned():
            self._end(self._loans[slot], again=True)

    def _leave_oldest(self) -> bool:
        """Leaves the oldest block that a receiver has taken to it; False where there is none to be left."""
        if self._allocator.receivers_keep:
            for loan in self._loans.values():
                if self._ledger.progress(loan.lease) is Progress.TAKEN:
                    self._end(loan, again=False)
                    return True
        return False

    def _end(self, loan: Loan, again: bool) -> None:
        del self._loans[loan.lease.slot]
        self._ledger.end(loan.lease)
        if again:
            self._allocator.free(loan.block)
        else:
            self._allocator.discard(loan.block)


def offsets_of(tensors: Mapping[str, Tensor]) -> tuple[tuple[int, ...], int]:
    """Where in a block each tensor begins, and how many bytes all take."""
    offsets, end = [], 0
    for tensor in tensors.values():
        offsets.append(end)
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), end
