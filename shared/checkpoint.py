"""Where a checkpoint lies and what identifies it, so that both halves provably come from the same one.

``python -m shared.checkpoint`` records the latter for copies of which a part is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_safetensors_metadata, snapshot_download
from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

from shared.weights import Stored, read_header, stored_tensors, weight_files

_DESCRIPTION = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_WEIGHTS = "*.safetensors"
_ELSEWISE = ["consolidated*", "original/*"]
_CODE = "*.py"
_RECORD = "fingerprint.json"
_SAMPLE_BYTES = 1024
_VOLATILE = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")


def resolve(model: str, revision: str | None = None, trusted: bool = False, weights: bool = True) -> Path:
    """The local folder of a checkpoint: ``model`` itself if it is a folder, else the hub's snapshot of it.

    Of the hub come the ``weights`` only if they are wanted, and code of the checkpoint's own only if that is ``trusted``.

    Raises:
        FileNotFoundError: the folder has no ``config.json``.
        OSError, ValueError: the hub cannot be reached or does not have it.
    """
    folder = Path(model)
    if not folder.is_dir():
        patterns = [*_DESCRIPTION, *([_WEIGHTS] if weights else []), *([_CODE] if trusted else [])]
        # Some publishers add all weights once more, in a layout of their own.
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=patterns, ignore_patterns=_ELSEWISE))
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is not a checkpoint: it has no config.json")
    return folder


def published_tensors(model: str, folder: Path) -> dict[str, Stored]:
    """The tensors of a checkpoint by the headers of its weight files; of the hub's, nothing else of those files is fetched.
    ``folder`` is what ``resolve`` said of ``model``.

    Raises:
        FileNotFoundError: it has no safetensors weights, or lacks a file of which it has no record.
        OSError, ValueError: a file is broken, or the hub cannot be reached.
    """
    try:
        _recorded(folder)
        return stored_tensors(folder)
    except FileNotFoundError:
        if Path(model).is_dir():
            raise
    try:
        files = get_safetensors_metadata(model, revision=folder.name).files_metadata.values()
    except (NotASafetensorsRepoError, SafetensorsParsingError) as error:
        raise ValueError(f"{model} has no weights in the safetensors format: {error}") from error
    found = {name: entry for file in files for name, entry in file.tensors.items()}
    return {name: Stored(entry.dtype, tuple(entry.shape), *entry.data_offsets) for name, entry in found.items()}


def fingerprint(folder: Path) -> str:
    """32 hex digits that identify a checkpoint by its content, wherever it lies.

    Covers the configuration, the header of every weight file (names, dtypes, shapes), and the first and last KiB of every
    tensor, so that a checkpoint of which only a part was trained again is told apart without reading it all. A file that is not
    there is taken for what the folder's record says of it; see ``record``.

    Raises:
        FileNotFoundError: the folder has no safetensors weights, or lacks a file of which it has no record.
        ValueError: a file is no safetensors file, or the index or the record is broken.
    """
    config = _json(folder / "config.json")
    for key in _VOLATILE:
        config.pop(key, None)
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    recorded = _recorded(folder)
    for name in weight_files(folder):
        found = recorded.get(name) or _file_digest(folder / name)
        digest.update(f"|{name}|{found}".encode())
    return digest.hexdigest()


def _recorded(folder: Path) -> dict[str, str]:
    """What the record says of weight files that are not there.

    Raises:
        FileNotFoundError: the folder has no safetensors weights, or lacks a file of which it has no record.
    """
    known = _json(folder / _RECORD)
    absent = [name for name in weight_files(folder) if not (folder / name).is_file()]
    for name in absent:
        if name not in known:
            raise FileNotFoundError(
                f"{folder} lacks {name}, of which it has no record either; python -m shared.checkpoint makes one where all of "
                "the checkpoint is"
            )
    return {name: known[name] for name in absent}


def record(folder: Path) -> Path:
    """Writes down in ``folder`` what a fingerprint needs of each weight file, so that a copy can do without the files that only
    the other half has tensors in.

    Raises:
        FileNotFoundError: a weight file is not there.
        OSError: the record cannot be written.
    """
    found = {name: _file_digest(folder / name) for name in weight_files(folder)}
    path = folder / _RECORD
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


def _file_digest(path: Path) -> str:
    """32 hex digits of a weight file's header and of both ends of its tensors."""
    header, tensors = read_header(path)
    digest = hashlib.blake2b(header, digest_size=16)
    with path.open("rb") as file:
        for _, stored in sorted(tensors.items()):
            for at in (stored.begin, max(stored.begin, stored.end - _SAMPLE_BYTES)):
                file.seek(at)
                digest.update(file.read(min(_SAMPLE_BYTES, stored.end - at)))
    return digest.hexdigest()


def chat_template_of(folder: Path) -> str | None:
    """The checkpoint's chat template, None without one.

    Where a processor and a tokenizer have one each, the processor's counts: the other may know nothing of media. Each of the
    places was the usual one once, so they are asked in the order in which transformers' processors do.

    Raises:
        OSError, ValueError: a file cannot be read, or is no JSON.
    """
    found: Any = _json(folder / "processor_config.json").get("chat_template")
    found = found or _json(folder / "chat_template.json").get("chat_template")
    if not found and (folder / "chat_template.jinja").is_file():
        found = (folder / "chat_template.jinja").read_text()
    found = found or _json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = {each["name"]: each["template"] for each in found}
    return found.get("default") if isinstance(found, dict) else found


def _json(path: Path) -> dict[str, Any]:
    """What a JSON file says; nothing where there is none."""
    content: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return content


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


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m shared.checkpoint FOLDER``."""
    parser = argparse.ArgumentParser(
        prog="python -m shared.checkpoint",
        description="Records what identifies each weight file of a checkpoint, for copies that have only those of one half.",
    )
    parser.add_argument("folder", type=Path, help="where all of the checkpoint is")
    folder: Path = parser.parse_args(arguments).folder
    try:
        print(f"recorded in {record(folder)}")
    except (OSError, ValueError) as error:
        sys.exit(f"not recorded: {error}")


if __name__ == "__main__":
    main()
