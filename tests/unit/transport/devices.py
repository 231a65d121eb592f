"""A device that tests can have anywhere: its memory is the CPU's, and what is done to it is recorded."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from shared.memory import MemoryUnreachable


class FakeIpc:
    """Stands for CUDA's interprocess communication. ``opened`` and ``exported`` are handles; ``finished`` counts waits."""

    def __init__(self, *devices: str) -> None:
        self._devices = devices
        self._memory: dict[str, Tensor] = {}
        self._numbers = count(1)
        self.exported: list[str] = []
        self.opened: list[str] = []
        self.finished = 0

    def devices(self) -> tuple[str, ...]:
        return self._devices

    def uuid(self, device: torch.device) -> str:
        return self._devices[0]

    def finish(self, device: torch.device) -> None:
        self.finished += 1

    def export(self, memory: Tensor) -> str:
        handle = f"handle-{next(self._numbers)}"
        self._memory[handle] = memory
        self.exported.append(handle)
        return handle

    def open(self, handle: str, device: str, size: int) -> Tensor:
        if device not in self._devices or handle not in self._memory:
            raise MemoryUnreachable(f"the GPU {device} is not visible here")
        self.opened.append(handle)
        return self._memory[handle][:size]
