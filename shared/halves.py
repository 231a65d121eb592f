"""Where a vision-language model is cut in two, and how to load one half without paying for the other.

The transformers class of the checkpoint is built on the meta device (no memory), the other half is taken out of it, and only
then are weights read: tensors of the missing half are never touched, neither on disk nor in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel
from transformers.utils import logging as transformers_logging

Half = Literal["vision", "language"]

SERVED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llava")
"""Families (``model_type``) that tests prove token for token. Others could load and answer wrongly, so they are refused."""


def load_half(folder: Path, half: Half, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint's own class with one half in it, in evaluation mode, frozen, on ``device``.

    Raises:
        ValueError: the checkpoint is of no family that can be cut, or lacks weights of this half.
        OSError: the weights cannot be read.
    """
    config = AutoConfig.from_pretrained(folder)
    transformers_logging.disable_progress_bar()
    model, report = _half_class(config, half).from_pretrained(
        folder, config=config, dtype=dtype, output_loading_info=True, local_files_only=True, use_safetensors=True
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        absent = sorted(report["missing_keys"])[:3]
        raise ValueError(f"the checkpoint lacks weights of the {half} half, for example {absent}")
    return cast(PreTrainedModel, model.to(device).eval().requires_grad_(False))


def empty_half(config: Any, half: Half) -> PreTrainedModel:
    """The half without weights (on the meta device), for what only needs the configuration, such as rotary positions.

    Raises:
        ValueError: the checkpoint is of no family that can be cut.
    """
    with torch.device("meta"):
        return cast(PreTrainedModel, _half_class(config, half)(config))


def _half_class(config: Any, half: Half) -> Any:
    """A subclass of the checkpoint's transformers class whose instances lack the other half."""
    if config.model_type not in SERVED:
        raise ValueError(f"the family {config.model_type} is not served; those that are: {', '.join(SERVED)}")
    whole: Any = AutoModelForImageTextToText._model_mapping[type(config)]

    class HalfModel(whole):  # type: ignore[misc]
        # Tensors of the other half are unexpected on purpose; missing ones are checked after loading.
        _keys_to_ignore_on_load_unexpected = (r".*",)
        if half == "vision":
            _tied_weights_keys: dict[str, str] = {}

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            remove_other_half(self, half)

    # transformers looks conversions of weights up by these, and would take another module for foreign code.
    HalfModel.__name__, HalfModel.__module__ = whole.__name__, whole.__module__
    return HalfModel


def remove_other_half(model: Any, half: Half) -> None:
    """Takes the modules and parameters of the other half out of ``model``, in place.

    The language half is the decoder and what stands beside the base model (the head); the vision half is all the rest.

    Raises:
        ValueError: the decoder is not a direct part of the base model.
    """
    base: nn.Module = model.base_model
    decoder = model.get_decoder()
    names = [name for name, child in base.named_children() if child is decoder]
    if len(names) != 1:
        raise ValueError(f"{type(model).__name__} keeps its decoder where the cut does not reach")
    if half == "vision":
        delattr(base, names[0])
        for name, child in list(model.named_children()):
            if child is not base:
                delattr(model, name)
        return
    for name, _ in list(base.named_children()):
        if name != names[0]:
            delattr(base, name)
    for name, _ in list(base.named_parameters(recurse=False)):
        delattr(base, name)
