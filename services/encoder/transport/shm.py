"""Blocks in memory of the host, used again and again: fresh memory costs many times more than copying into it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from services.encoder.transport.lender import Block, offsets_of
from shared.memory import Names, Segment
from shared.wire import Lease, SharedMemory

_LEAST_BYTES = 64 * 1024
_IDLE_AFTER = 30.0  # seconds after which free memory is given back


class SharedBlock:
    """So many bytes of shared memory. The memory itself is made when it is first written: that is slow."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._segment: Segment | None = None

    def place(self, tensors: Mapping[str, Tensor], lease: Lease) -> SharedMemory:
        if self._segment is None:
            self._segment = Segment(self.name, self.size)
        offsets, _ = offsets_of(tensors)
        for offset, tensor in zip(offsets, tensors.values(), strict=True):
            if tensor.numel():
                whole = torch.frombuffer(self._segment.buffer, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
                whole.view(tensor.shape).copy_(tensor.detach())
        return SharedMemory(segment=self._segment.memory, offsets=offsets, lease=lease)

    def close(self) -> None:
        """Nobody can open it any more; whoever has keeps it."""
        if self._segment is not None:
            self._segment.close()


class SharedBlocks:
    """No more than ``max_bytes`` are lent or free; free ones of other sizes go first where room is needed."""

    receivers_keep = True

    def __init__(self, names: Names, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = names
        self._max_bytes = max_bytes
        self._clock = clock
        self._free: list[tuple[float, SharedBlock]] = []
        self.bytes = 0

    def allocate(self, size: int) -> SharedBlock | None:
        wanted = rounded(size)
        if wanted > self._max_bytes:
            raise ValueError(f"{size} bytes are more than the {self._max_bytes} of shared memory")
        # The last one used first: it may still be in a cache. None that is wastefully large.
        for index in reversed(range(len(self._free))):
            if wanted <= self._free[index][1].size <= 2 * wanted:
                return self._free.pop(index)[1]
        while self.bytes + wanted > self._max_bytes:
            if not self._free:
                return None
            self.discard(self._free.pop(0)[1])
        self.bytes += wanted
        return SharedBlock(self._names.next(), wanted)

    def free(self, block: Block) -> None:
        assert isinstance(block, SharedBlock)
        self._free.append((self._clock(), block))

    def discard(self, block: Block) -> None:
        assert isinstance(block, SharedBlock)
        self.bytes -= block.size
        block.close()

    def tidy(self, now: float) -> None:
        while self._free and now - self._free[0][0] > _IDLE_AFTER:
            self.discard(self._free.pop(0)[1])

    def close(self) -> None:
        while self._free:
            self.discard(self._free.pop()[1])


def rounded(size: int) -> int:
    """The least size of a block that holds ``size`` bytes: one of four in each power of two, so that blocks fit again."""
    step = max(_LEAST_BYTES, 1 << max(0, size.bit_length() - 3))
    return max(_LEAST_BYTES, -(-size // step) * step)
