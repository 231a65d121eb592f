"""The weight files of a checkpoint: which there are, what is where in them, and which of them a model reads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a weight file: its type by the format's name (``BF16``), and where its bytes are in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def sketch(self) -> Tensor:
        """A tensor of this type and shape without any numbers, on the meta device.

        Raises:
            ValueError: the type is none that can be read here.
        """
        if self.dtype not in _DTYPES:
            raise ValueError(f"tensors stored as {self.dtype} cannot be read")
        return torch.empty(self.shape, dtype=_DTYPES[self.dtype], device="meta")


def weight_files(folder: Path) -> list[str]:
    """Names of the weight files, in order: those that transformers would read of the safetensors format.

    Raises:
        FileNotFoundError: there are none.
        ValueError: the index is broken.
    """
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    if not (folder / _INDEX).is_file():
        raise FileNotFoundError(f"{folder} has no weights in the safetensors format")
    return sorted(set(weight_map(folder).values()))


def weight_map(folder: Path) -> dict[str, str]:
    """Of a checkpoint in several files, the file of each tensor.

    Raises:
        ValueError: the index is broken.
    """
    try:
        found: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder / _INDEX} does not say which file has which tensor: {error!r}") from error
    return found


def files_with(folder: Path, wanted: Callable[[str], bool]) -> list[str]:
    """Those of the weight files that have tensors whose names are ``wanted``; where there is only one, that.

    Raises:
        FileNotFoundError: there are no weight files.
        ValueError: the index is broken.
    """
    names = weight_files(folder)
    if names == [_SINGLE]:
        return names
    return sorted({file for name, file in weight_map(folder).items() if wanted(name)})


def read_header(path: Path) -> tuple[bytes, dict[str, Stored]]:
    """The header of a weight file as it is, and the tensors that it names; nothing else is read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no safetensors file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"{path} is no file in the safetensors format: its header would have {length} bytes")
        raw = file.read(length)
    start = _LENGTH_BYTES + length
    try:
        entries: dict[str, Any] = json.loads(raw)
        return raw, {
            name: Stored(entry["dtype"], tuple(entry["shape"]), *(start + offset for offset in entry["data_offsets"]))
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no file in the safetensors format: {error!r}") from error


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of a checkpoint, by the headers of those of its files that are there.

    Raises:
        OSError: there are no weight files, or one cannot be read.
        ValueError: one is no safetensors file, or the index is broken.
    """
    there = [folder / name for name in weight_files(folder) if (folder / name).is_file()]
    return {name: stored for path in there for name, stored in read_header(path)[1].items()}


def names_read(model: Any, names: Iterable[str], conversions: Sequence[WeightRenaming | WeightConverter]) -> set[str]:
    """Those of a checkpoint's tensors that ``model`` takes, by transformers' own rules: a published name may be an older one,
    and many tensors may make one parameter."""
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    keys: Mapping[str, Tensor] = model.state_dict()
    found = set()
    for name in names:
        renamed, _ = rename_source_key(name, renamings, converters, model.base_model_prefix, keys)
        if renamed in keys or name in keys:
            found.add(name)
    return found
