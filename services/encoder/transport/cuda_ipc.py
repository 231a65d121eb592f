"""Blocks in memory of the GPU, which another process on the host opens by CUDA's interprocess communication."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from services.encoder.transport.lender import Block, offsets_of
from shared.cuda_ipc import DeviceIpc
from shared.wire import DeviceMemory, Lease

_GRAIN = 64 * 1024  # bytes
# Seconds after which memory is written again that a receiver, now gone, may have been copying from. Copying takes milliseconds.
_QUARANTINE = 30.0


class DeviceBlock:
    """``size`` bytes on the device, ``offset`` bytes into a pool; without a pool, memory of its own, which is made when it is
    first written."""

    def __init__(self, blocks: DeviceBlocks, size: int, offset: int = 0, pool: Tensor | None = None) -> None:
        self._blocks = blocks
        self.size = size
        self.offset = offset
        self._pool = pool

    def place(self, tensors: Mapping[str, Tensor], lease: Lease) -> DeviceMemory:
        device, ipc = self._blocks.device, self._blocks.ipc
        pool = torch.empty(self.size, dtype=torch.uint8, device=device) if self._pool is None else self._pool
        self._pool = pool
        offsets, _ = offsets_of(tensors)
        for offset, tensor in zip(offsets, tensors.values(), strict=True):
            begin = self.offset + offset
            pool[begin : begin + tensor.nbytes].copy_(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
        ipc.finish(device)  # what others read must be there when the message is
        return DeviceMemory(
            device=ipc.uuid(device),
            handle=self._blocks.handle(pool),
            size=pool.nbytes,
            offsets=tuple(self.offset + offset for offset in offsets),
            lease=lease,
        )


class DeviceBlocks:
    """With ``one_pool``, first-fit in one pool of ``max_bytes``, whose handle receivers open once; else each by itself."""

    receivers_keep = False  # they copy at once

    def __init__(
        self, ipc: DeviceIpc, device: torch.device, max_bytes: int, one_pool: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ipc = ipc
        self.device = device
        self._max_bytes = max_bytes
        self._clock = clock
        self._pool = torch.empty(max_bytes, dtype=torch.uint8, device=device) if one_pool else None
        self._pool_handle: str | None = None
        self._used: dict[int, DeviceBlock] = {}  # by offset, those in quarantine included
        self._quarantine: list[tuple[float, DeviceBlock]] = []
        self._lent = 0

    @property
    def bytes(self) -> int:
        return self._lent if self._pool is None else self._max_bytes

    def handle(self, memory: Tensor) -> str:
        """What leads to ``memory`` from another process; that of the pool is always the same."""
        if memory is not self._pool:
            return self.ipc.export(memory)
        if self._pool_handle is None:
            self._pool_handle = self.ipc.export(memory)
        return self._pool_handle

    def allocate(self, size: int) -> DeviceBlock | None:
        wanted = max(_GRAIN, -(-size // _GRAIN) * _GRAIN)
        if wanted > self._max_bytes:
            raise ValueError(f"{size} bytes are more than the {self._max_bytes} of device memory to send from")
        self.tidy(self._clock())
        if self._pool is None:
            if self._lent + wanted > self._max_bytes:
                return None
            block = DeviceBlock(self, wanted)
        else:
            begin = self._gap(wanted)
            if begin is None:
                return None
            block = self._used[begin] = DeviceBlock(self, wanted, begin, self._pool)
        self._lent += wanted
        return block

    def _gap(self, wanted: int) -> int | None:
        """Where in the pool so many bytes are free."""
        begin = 0
        for offset in sorted(self._used):
            if offset - begin >= wanted:
                return begin
            begin = offset + self._used[offset].size
        return begin if self._max_bytes - begin >= wanted else None

    def free(self, block: Block) -> None:
        assert isinstance(block, DeviceBlock)
        self._lent -= block.size
        if self._pool is not None:
            del self._used[block.offset]

    def discard(self, block: Block) -> None:
        assert isinstance(block, DeviceBlock)
        self._quarantine.append((self._clock(), block))

    def tidy(self, now: float) -> None:
        while self._quarantine and now - self._quarantine[0][0] > _QUARANTINE:
            self.free(self._quarantine.pop(0)[1])

    def close(self) -> None:
        self._pool = None
        self._used.clear()
        self._quarantine.clear()
