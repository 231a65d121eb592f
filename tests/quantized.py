"""Makes quantized checkpoints of others, in the formats in which they are published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 16
"""Numbers that share a scale, of 4 bits each."""


def to_fp8(folder: Path, at: Path, chosen: str, untouched: list[str]) -> Path:
    """A copy of a checkpoint in which weights whose names match ``chosen`` are float8, each 128 x 128 of them with a scale, as
    DeepSeek publishes them. ``untouched`` are names of modules that are not quantized."""
    weights: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        weights[name] = weight
        if re.search(chosen, name):
            scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
            weights[name] = (weight / scale).to(torch.float8_e4m3fn)
            weights[f"{name}_scale_inv"] = scale.view(1, 1)
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": untouched}
    return _write(folder, at, weights, {**settings, "activation_scheme": "dynamic"})


def to_int4(folder: Path, at: Path, chosen: str, untouched: list[str], part: str | None = None) -> Path:
    """The same with weights of 4 bits, as compressed-tensors packs them. ``part`` is the part of the configuration that says so
    (Kimi's is the text's)."""
    arguments: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments), format="pack-quantized")
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    weights: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not re.search(chosen, name):
            weights[name] = weight
            continue
        scale = weight.view(weight.shape[0], -1, GROUP).abs().amax(-1) / 7
        packed = compressor.compress({"weight": weight, "weight_scale": scale}, scheme)
        weights |= {name.removesuffix("weight") + kind: value.contiguous() for kind, value in packed.items()}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": untouched,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments}},
    }
    return _write(folder, at, weights, settings, part)


def _write(
    folder: Path, at: Path, weights: dict[str, Tensor], settings: dict[str, Any] | None, part: str | None = None
) -> Path:
    at.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (at / path.name).write_bytes(path.read_bytes())
    config = json.loads((at / "config.json").read_text())
    if settings is not None:
        (config if part is None else config[part])["quantization_config"] = settings
    (at / "config.json").write_text(json.dumps(config))
    save_file(weights, at / "model.safetensors", {"format": "pt"})
    return at


def rounded(folder: Path, at: Path, chosen: str) -> Path:
    """A checkpoint that is not quantized, whose weights have the values that those of ``to_int4`` stand for."""
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if re.search(chosen, name)]:
        groups = weights[name].view(weights[name].shape[0], -1, GROUP)
        scale = groups.abs().amax(-1, keepdim=True) / 7
        weights[name] = ((groups / scale).round() * scale).view_as(weights[name])
    return _write(folder, at, weights, None)
