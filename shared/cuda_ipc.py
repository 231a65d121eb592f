"""Memory of a GPU that another process on the host has open.

A handle is text: the fields that torch's CUDA storages exchange between processes, as JSON, their bytes in hex digits. Nothing
of it is ever unpickled, and its fields are checked before torch gets them.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from shared.memory import MemoryUnreachable


class DeviceIpc(Protocol):
    """What a kind of device can do between processes."""

    def devices(self) -> tuple[str, ...]:
        """The UUIDs of the devices that this process sees."""
        ...

    def uuid(self, device: torch.device) -> str:
        """The same of one device."""
        ...

    def finish(self, device: torch.device) -> None:
        """Returns when all that was begun on a device is done."""

    def export(self, memory: Tensor) -> str:
        """A handle for ``memory``, ``(bytes,)`` uint8, by which others on this host can open it."""
        ...

    def open(self, handle: str, device: str, size: int) -> Tensor:
        """The memory ``(size,)`` uint8 behind a handle, on the device with that UUID.

        Raises:
            MemoryUnreachable: it cannot be opened here.
        """
        ...


_Bytes = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=512)]


class _Handle(BaseModel):
    model_config = ConfigDict(extra="forbid")

    memory: _Bytes
    size: int = Field(gt=0)
    offset: int = Field(ge=0)
    counter: _Bytes
    counter_offset: int = Field(ge=0)
    event: _Bytes
    event_sync: bool


class CudaIpc:
    """CUDA's, by torch's storages."""

    def devices(self) -> tuple[str, ...]:
        return tuple(_uuid(index) for index in range(torch.cuda.device_count())) if torch.cuda.is_available() else ()

    def uuid(self, device: torch.device) -> str:
        return _uuid(torch.cuda.current_device() if device.index is None else device.index)

    def finish(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()

    def export(self, memory: Tensor) -> str:
        storage: Any = memory.untyped_storage()
        _, handle, size, offset, counter, counter_offset, event, event_sync = storage._share_cuda_()
        packed = _Handle(
            memory=bytes(handle).hex(),
            size=size,
            offset=offset,
            counter=bytes(counter).hex(),
            counter_offset=counter_offset,
            event=bytes(event).hex(),
            event_sync=event_sync,
        )
        return packed.model_dump_json()

    def open(self, handle: str, device: str, size: int) -> Tensor:
        index = next((index for index, uuid in enumerate(self.devices()) if uuid == device), None)
        if index is None:
            raise MemoryUnreachable(f"the GPU {device} is not visible here")
        try:
            found = _Handle.model_validate_json(handle)
            torch.cuda.init()  # type: ignore[no-untyped-call]
            storage = torch.UntypedStorage._new_shared_cuda(
                index,
                bytes.fromhex(found.memory),
                found.size,
                found.offset,
                bytes.fromhex(found.counter),
                found.counter_offset,
                bytes.fromhex(found.event),
                found.event_sync,
            )
        except (ValidationError, RuntimeError) as error:
            raise MemoryUnreachable(f"its handle cannot be opened: {error}") from error
        memory = torch.empty(0, dtype=torch.uint8, device=torch.device("cuda", index)).set_(storage)
        if memory.numel() < size:
            raise MemoryUnreachable("it is smaller than it is said to be")
        return memory[:size]


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
