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


def load_half(folder: Path, half: Half, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint's own class with one half in it, in evaluation mode, frozen, on ``device``.

    Raises:
        ValueError: the checkpoint is of no family that can be cut, or lacks weights of this half.
        OSError: the weights cannot be read.
    """
    config = AutoConfig.from_pretrained(folder)
    mapping = AutoModelForImageTextToText._model_mapping
    if type(config) not in mapping:
        raise ValueError(f"{config.model_type} is not an image-text-to-text family of transformers; it cannot be cut in two")
    whole: Any = mapping[type(config)]
    transformers_logging.disable_progress_bar()
    model, report = _half_of(whole, half).from_pretrained(
        folder, config=config, dtype=dtype, output_loading_info=True, local_files_only=True
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        absent = sorted(report["missing_keys"])[:3]
        raise ValueError(f"the checkpoint lacks weights of the {half} half, for example {absent}")
    return cast(PreTrainedModel, model.to(device).eval().requires_grad_(False))


def _half_of(whole: Any, half: Half) -> Any:
    """A subclass of a transformers class whose instances lack the other half."""

    class HalfModel(whole):  # type: ignore[misc]
        # Tensors of the other half are unexpected on purpose; missing ones are checked after loading.
        _keys_to_ignore_on_load_unexpected = (r".*",)
        if half == "vision":
            _tied_weights_keys: dict[str, str] = {}

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            remove_other_half(self, half)

    HalfModel.__name__ = whole.__name__
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
