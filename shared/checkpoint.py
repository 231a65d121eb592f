"""Where a checkpoint lies and what identifies it, so that both halves provably come from the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from huggingface_hub import snapshot_download

_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_SAMPLE_BYTES = 1024
_VOLATILE = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")


def resolve(model: str, revision: str | None = None) -> Path:
    """The local folder of a checkpoint: ``model`` itself if it is a folder, else the hub's snapshot of it.

    Raises:
        FileNotFoundError: the folder has no ``config.json``.
        OSError, ValueError: the hub cannot be reached or does not have it.
    """
    folder = Path(model)
    if not folder.is_dir():
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=_PATTERNS))
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is not a checkpoint: it has no config.json")
    return folder


def fingerprint(folder: Path) -> str:
    """32 hex digits that identify a checkpoint by its content, wherever it lies.

    Covers the configuration, the header of every weight file (names, dtypes, shapes), and the first and last KiB of every
    tensor, so that a checkpoint of which only a part was trained again is told apart without reading it all.

    Raises:
        FileNotFoundError: the folder has no safetensors weights.
    """
    config = json.loads((folder / "config.json").read_text())
    for key in _VOLATILE:
        config.pop(key, None)
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no weights in the safetensors format")
    for path in files:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(size)
            digest.update(f"|{path.name}|".encode() + header)
            for name, entry in sorted(json.loads(header).items()):
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    for at in (begin, max(begin, end - _SAMPLE_BYTES)):
                        file.seek(8 + size + at)
                        digest.update(file.read(min(_SAMPLE_BYTES, end - at)))
    return digest.hexdigest()


def count_parameters(named: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, int]:
    """Numbers of parameters by module, named by the first two parts of their path (``model.visual``)."""
    counts: dict[str, int] = {}
    for name, parameter in named:
        key = ".".join(name.split(".")[:2])
        counts[key] = counts.get(key, 0) + parameter.numel()
    return counts


def pick_device(device: str) -> torch.device:
    """``auto`` is the GPU if there is one."""
    if device != "auto":
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and on a CPU that multiplies it in tiles (AMX), else float32, which is faster there."""
    if dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    tiles = torch.cpu._is_amx_tile_supported() if device.type == "cpu" else True
    return torch.bfloat16 if tiles else torch.float32
