"""Loads halves of checkpoints where nothing of the other half can be read, and says what was asked for.

Of each weight file that is opened, the pages that hold the other half's tensors alone are taken from this process: whatever
touches one ends it by a signal. ``python -m tests.reading`` reads cases from standard input and writes what became of each to
standard output, both as JSON; each case has a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch

import services.encoder.models.midashenglm
import services.language.models.midashenglm  # noqa: F401  (both read weight files by themselves)
from shared.families import open_family
from shared.halves import Half

PAGE = mmap.PAGESIZE
ENCODER = re.compile(
    r"(^|\.)(visual|vision_tower|vision_model|vision_encoder|audio_tower|audio_encoder|audio_projector|multi_modal_projector"
    r"|mm_projector|connector|resampler_model|image_newline)(\.|$)"
)
"""Names of tensors of encoder halves, as checkpoints have them."""


def of_half(name: str, half: Half) -> bool:
    """Whether a tensor belongs to a half, by its name alone."""
    return (ENCODER.search(name) is not None) == (half == "vision")


def places(path: Path) -> dict[str, tuple[int, int]]:
    """Where each tensor's bytes are in a weight file, by the format's definition."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: (8 + size + entry["data_offsets"][0], 8 + size + entry["data_offsets"][1]) for name, entry in header.items()}


def lonely_pages(found: dict[str, tuple[int, int]], half: Half) -> list[int]:
    """Numbers of pages of a file that hold bytes of the other half, and nothing else."""
    used: set[int] = {0}
    other: set[int] = set()
    for name, (begin, end) in found.items():
        (used if of_half(name, half) else other).update(range(begin // PAGE, -(-end // PAGE)))
    first = min(begin for begin, _ in found.values())
    return sorted(other - used - set(range(-(-first // PAGE))))


def mappings(path: Path) -> Iterator[tuple[int, int, int]]:
    """First address, last address and place in the file of each of this process's mappings of a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == str(path.resolve()):
            first, last = (int(address, 16) for address in fields[0].split("-"))
            yield first, last, int(fields[2], 16)


def take_away(path: Path, pages: Sequence[int]) -> int:
    """Makes pages of a file unreadable wherever this process has them mapped; returns how many that were."""
    libc = ctypes.CDLL(None, use_errno=True)
    taken = 0
    for first, last, offset in list(mappings(path)):
        for page in pages:
            address = first + page * PAGE - offset
            if first <= address < last:
                if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0):
                    raise OSError(ctypes.get_errno(), "mprotect")
                taken += 1
    return taken


class Slice:
    """A tensor in a file that notes when it is read."""

    def __init__(self, inner: Any, name: str, read: list[str]) -> None:
        self._inner, self._name, self._read = inner, name, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __getitem__(self, key: Any) -> torch.Tensor:
        self._read.append(self._name)
        tensor: torch.Tensor = self._inner[key]
        return tensor


class Opened:
    """A weight file that notes what is read of it."""

    def __init__(self, inner: Any, read: list[str]) -> None:
        self._inner, self._read = inner, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __exit__(self, *exception: object) -> None:
        self._inner.__exit__(*exception)

    def __enter__(self) -> Opened:
        return self

    def get_slice(self, name: str) -> Slice:
        return Slice(self._inner.get_slice(name), name, self._read)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.get_slice(name)[...]


def load(folder: Path, half: Half, touch: bool = False) -> dict[str, Any]:
    """Loads one half as described above; ``touch`` reads one tensor of the other half too."""
    read: list[str] = []
    opened: list[str] = []
    taken = 0
    open_file = safetensors.safe_open

    def watch(path: str, *arguments: Any, **options: Any) -> Opened:
        nonlocal taken
        file = open_file(path, *arguments, **options)
        opened.append(Path(path).name)
        found = places(Path(path))
        taken += take_away(Path(path), lonely_pages(found, half))
        if touch:
            largest = max((end - begin, name) for name, (begin, end) in found.items() if not of_half(name, half))
            file.get_slice(largest[1])[...].clone()
        return Opened(file, read)

    for module in list(sys.modules.values()):
        if getattr(module, "safe_open", None) is open_file:
            module.safe_open = watch  # type: ignore[attr-defined]
    family, config = open_family(folder)
    where = torch.device("cpu"), torch.float32
    if half == "vision":
        family.half("encoder").load(folder, config, *where)
    else:
        family.half("language")(config, family.modalities).load(folder, *where)
    return {"read": sorted(read), "opened": sorted(opened), "pages": taken}


def apart(case: dict[str, Any]) -> dict[str, Any]:
    """What ``load`` says in a process of its own, or the signal that ended that."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(sending, "w") as pipe:
            json.dump(load(Path(case["folder"]), case["half"], case.get("touch", False)), pipe)
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else json.loads(answer or "{}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    json.dump([apart(case) for case in json.load(sys.stdin)], sys.stdout)
