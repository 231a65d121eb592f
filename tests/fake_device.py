"""A device that is not there: its tensors lie on the CPU, but torch takes them for another device's, and what is done with them
is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

DEVICE = torch.device("xla:0")  # one that this build of torch knows by name only


class There(Tensor):
    """A tensor on the device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> There:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
        )
        there = cast(There, made)
        there.inner = inner
        return there

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the device's mode")

    def contiguous(self, *_: object, **__: object) -> Tensor:
        """torch's own asks the device for a guard before it gets here, and there is no device."""
        return self if self.is_contiguous() else self.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class Step:
    """One operation that made new memory: what it did, and the size in bytes, dtype and device of what it made."""

    name: str
    nbytes: int
    dtype: torch.dtype
    device: torch.device


class FakeDevice(TorchDispatchMode):
    """Inside it ``DEVICE`` is there. ``made`` are the operations that made new memory for or from its tensors; ``left`` are
    those that brought something from it to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Step] = []

    @property
    def left(self) -> list[Step]:
        return [step for step in self.made if step.device != DEVICE]

    def put(self, tensor: Tensor) -> Tensor:
        """The same tensor, on the device."""
        return There(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        taken: list[There] = []
        tree_map_only(There, taken.append, (args, kwargs))
        asked = kwargs.get("device")
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        target = torch.device(asked) if asked is not None else DEVICE if taken else torch.device("cpu")
        inner_args, inner_kwargs = tree_map_only(There, lambda there: there.inner, (args, kwargs))
        if func is torch.ops.aten._to_copy.default and target.type == "cpu":
            inner_kwargs["memory_format"] = torch.preserve_format
        result = cast(Callable[..., Any], func)(*inner_args, **inner_kwargs)
        known = {there.inner.untyped_storage().data_ptr() for there in taken}

        def record(tensor: Tensor) -> None:
            if (taken or target == DEVICE) and tensor.untyped_storage().data_ptr() not in known:
                self.made.append(Step(str(func), tensor.nbytes, tensor.dtype, target))

        tree_map_only(Tensor, record, result)
        return result if target.type == "cpu" else tree_map_only(Tensor, There, result)
