"""The checkpoint's transformers processor, as far as what is installed allows: without torchvision it takes no videos."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer, AutoVideoProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name

from shared.checkpoint import chat_template_of
from shared.foreign import read_part
from shared.identity import Modality

_LOADERS = {
    "image_processor": ("image", AutoImageProcessor),
    "video_processor": ("video", AutoVideoProcessor),
    "feature_extractor": ("audio", AutoFeatureExtractor),
}


def load_processor(folder: Path, config: Any, modalities: Sequence[Modality], trusted: bool = False) -> Any:
    """The processor that transformers has for the family of ``config``, with its tokenizer; parts for other modalities than
    ``modalities`` are None. ``AutoProcessor`` refuses a processor of videos as a whole where torchvision is missing.

    Raises:
        ValueError: transformers has none, it needs a library that is not installed, or it needs code of the checkpoint's own,
            which is not ``trusted``.
        OSError: a file cannot be read.
    """
    try:
        return _assembled(folder, _class_of(folder, config), modalities, trusted)
    except ImportError as error:
        told = " ".join(str(error).split())
        raise ValueError(f"the processor of {config.model_type} models needs what is not installed: {told}") from error


def _assembled(folder: Path, whole: Any, modalities: Sequence[Modality], trusted: bool) -> Any:

    class Processor(whole):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)

    # Saved settings name the class, and messages do.
    Processor.__name__ = whole.__name__
    settings, _ = whole.get_processor_dict(folder)
    parts: list[Any] = []
    for name in whole.get_attributes():
        modality, loader = _LOADERS.get(name, (None, AutoTokenizer))
        parts.append(read_part(loader, folder, trusted) if modality is None or modality in modalities else None)
    template = settings.pop("chat_template", None) or chat_template_of(folder)
    return Processor.from_args_and_dict(parts, {**settings, "chat_template": template})


def _class_of(folder: Path, config: Any) -> Any:
    """The class that the checkpoint's files name, else the one of its family."""
    for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            named = json.loads((folder / name).read_text()).get("processor_class")
            if named and (found := processor_class_from_name(named)) is not None:
                return found
    if type(config) not in PROCESSOR_MAPPING:
        raise ValueError(f"transformers has no processor for models of the family {config.model_type}")
    return PROCESSOR_MAPPING[type(config)]
