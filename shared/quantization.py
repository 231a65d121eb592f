"""Checkpoints whose weights are quantized: transformers' quantizers load them, or the checkpoint is refused at start."""

from __future__ import annotations

import copy
from typing import Any

from transformers.quantizers.auto import AutoHfQuantizer, get_hf_quantizer


def quantization_of(config: Any) -> dict[str, Any] | None:
    """How a checkpoint's weights are quantized, as its configuration says it; None if they are not."""
    found: Any = getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(decoder=True), "quantization_config", None
    )
    if found is None:
        return None
    settings: dict[str, Any] = found if isinstance(found, dict) else found.to_dict()
    return settings


def require_quantizer(config: Any) -> None:
    """Refuses a checkpoint whose quantization cannot be loaded on this machine, before anything is read.

    Raises:
        ValueError: transformers does not know the method, its package is not installed, or it needs another device.
    """
    settings = quantization_of(config)
    if settings is None:
        return
    method = settings.get("quant_method")
    # transformers would load the packed numbers of a method that it does not know as weights.
    if not AutoHfQuantizer.supports_quant_method(settings):
        raise ValueError(f"the checkpoint is quantized by {method}, which transformers does not load")
    try:
        get_hf_quantizer(copy.deepcopy(config), None, None, True, {})
    except (ImportError, RuntimeError, ValueError) as error:
        raise ValueError(f"the checkpoint is quantized by {method}, which cannot be loaded here: {error}") from error


def unpacking(config: Any) -> Any:
    """The same configuration, by which compressed-tensors unpacks weights as they are read. By itself it does so when the whole
    model is first called, which a half never is; and layers that are not packed it knows by published names only."""
    settings = quantization_of(config)
    if settings is None or settings.get("quant_method") != "compressed-tensors" or settings.get("use_optimized_inference"):
        return config
    changed = copy.copy(config)
    changed.quantization_config = settings | {"dequantize": True}
    return changed


def unpacks(quantizer: Any) -> bool:
    """Whether weights are plain numbers once they are loaded."""
    return bool(getattr(quantizer.quantization_config, "dequantize", False))
