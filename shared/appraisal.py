"""Whether a checkpoint can be served, and what it takes: found out from its configuration and the headers of its weight files.

Behind ``python -m services.encoder check MODEL`` and the same of the language service, which each judge by what starting them
would do, up to the reading of weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import Field, ValidationError
from pydantic_settings import CliApp, CliPositionalArg, SettingsConfigDict
from transformers.utils import logging as transformers_logging

from shared.families import Family
from shared.halves import Half, Sketch, sketch_half, whole_class
from shared.quantization import quantization_of
from shared.settings import DEMO_MODEL, ModelSettings
from shared.weights import Stored


class CheckSettings(ModelSettings):
    """Says whether a checkpoint can be served, before anything is started and without reading weights. Ends with 0 if so, else
    with 1 and the reason."""

    model_config = SettingsConfigDict(cli_shortcuts={"as_json": "json", "as-json": "json"})

    model: CliPositionalArg[str] = Field(DEMO_MODEL, description="Checkpoint: a local folder, or a name on the model hub.")
    as_json: bool = Field(False, description="Answer in JSON.")


@dataclass(frozen=True, slots=True)
class HalfSize:
    """What one half takes: parameters by module and in all, their bytes in memory, and the bytes that are read for them."""

    parameters: dict[str, int]
    parameters_total: int
    memory_bytes: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The key/value pool of a language half: bytes of one token, and how many of those a GiB holds."""

    bytes_per_token: int
    tokens_per_gib: int


@dataclass(frozen=True, slots=True)
class Served:
    """How a checkpoint is served.

    ``adapters`` are the classes of both halves. ``taken_here`` is what of ``modalities`` an encoder on this machine could take,
    and ``missing_extras`` what it lacks for the rest. ``positions`` counts the axes of a token's position, ``pool`` is what the
    language half keeps of each token; an encoder knows neither. A half of which files are left out has no size.
    """

    family: str
    model_type: str
    adapters: dict[str, str]
    modalities: tuple[str, ...]
    taken_here: tuple[str, ...]
    missing_extras: tuple[str, ...]
    quantization: str | None
    device: str
    dtype: str
    encoder: HalfSize | None
    language: HalfSize | None
    positions: int | None = None
    pool: PoolSize | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """How weights are computed with."""

    device: torch.device
    dtype: torch.dtype


def served(
    family: Family, config: Any, kind: Kind, sketch: Sketch, half: Half, tensors: Mapping[str, Stored], **more: Any
) -> Served:
    """What both services say of a checkpoint, one by its own ``half``, of which it has the ``sketch``."""
    own = _size(sketch, tensors)
    other = _other(config, "language" if half == "vision" else "vision", kind.dtype, sketch, tensors)
    lacking = set(family.modalities) - set(family.here())
    return Served(
        family=family.title,
        model_type=family.model_type,
        adapters={"encoder": family.encoder, "language": family.language},
        modalities=family.modalities,
        taken_here=family.here(),
        missing_extras=(*family.needed(), *(["video"] if "video" in lacking else [])),
        quantization=(quantization_of(config) or {}).get("quant_method"),
        device=str(kind.device),
        dtype=str(kind.dtype).removeprefix("torch."),
        encoder=own if half == "vision" else other,
        language=own if half == "language" else other,
        **more,
    )


def _size(sketch: Sketch, tensors: Mapping[str, Stored]) -> HalfSize:
    read = sum(tensors[name].size for name in sketch.names)
    return HalfSize(sketch.parameters, sum(sketch.parameters.values()), sketch.weight_bytes, read)


def _other(config: Any, half: Half, dtype: torch.dtype, own: Sketch, tensors: Mapping[str, Stored]) -> HalfSize | None:
    """The size of the other half, whose adapter is the other service's: by the class that it is cut out of, or, where there is
    none, by the tensors that are left."""
    try:
        whole_class(config)
    except ValueError:
        rest = [stored for name, stored in tensors.items() if name not in own.names]
        numbers = sum(stored.numbers for stored in rest)
        return HalfSize({}, numbers, numbers * dtype.itemsize, sum(stored.size for stored in rest)) if rest else None
    try:
        return _size(sketch_half(config, half, dtype, tensors), tensors)
    except ValueError:
        return None


def run(command: type[CheckSettings], arguments: Sequence[str], appraise: Callable[[CheckSettings], Served]) -> int:
    """Prints what ``appraise`` says of the checkpoint of a command line; returns the exit status. A wrong command line ends the
    process with 2."""
    try:
        settings = CliApp.run(command, cli_args=list(arguments))
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        print(f"check: {'; '.join(wrong)}", file=sys.stderr)
        sys.exit(2)
    transformers_logging.set_verbosity_error()
    found, reason = None, None
    try:
        found = appraise(settings)
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
    if settings.as_json:
        told = {"model": settings.model, "served": found is not None, "reason": reason}
        print(json.dumps(told | (asdict(found) if found else {}), indent=2))
    elif found is None:
        print(f"{settings.model}: not served: {reason}")
    else:
        print(f"{settings.model}: served")
        for label, text in _lines(found):
            print(f"  {label:<14} {text}")
    return 0 if found else 1


def _lines(found: Served) -> Iterator[tuple[str, str]]:
    """What people are told, by line."""
    yield "family", f"{found.family} ({found.model_type})"
    yield "takes", ", ".join(found.modalities)
    if found.missing_extras:
        lacking = [kind for kind in found.modalities if kind not in found.taken_here]
        needed = f"an encoder needs pip install 'epd-pair[{','.join(found.missing_extras)}]'"
        yield "here", needed + (f" for {', '.join(lacking)}" if lacking else "")
    if found.positions is not None:
        yield "positions", "three axes (multimodal rotary)" if found.positions > 1 else "one axis"
    if found.quantization:
        yield "quantized", f"by {found.quantization}"
    for name, size in (("encoder", found.encoder), ("language", found.language)):
        yield f"{name} half", f"{_sizes(size, found.dtype)}, {found.adapters[name]}"
    if found.pool:
        kib = found.pool.bytes_per_token / 1024
        yield "key/value pool", f"{kib:,.1f} KiB a token, {found.pool.tokens_per_gib:,} tokens a GiB"


def _sizes(size: HalfSize | None, dtype: str) -> str:
    if size is None:
        return "not all here"
    return (
        f"{size.parameters_total:,} parameters, {size.memory_bytes / 2**20:,.1f} MiB in {dtype}, "
        f"{size.read_bytes / 2**20:,.1f} MiB read"
    )
