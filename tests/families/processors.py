"""transformers' own processor of a checkpoint, also where torchvision is missing, by another way than the services take."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers
from transformers import AutoConfig, AutoProcessor, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.utils import is_torchvision_available
from transformers.video_utils import load_video

AUTO = {"tokenizer": "AutoTokenizer", "image_processor": "AutoImageProcessor", "feature_extractor": "AutoFeatureExtractor"}


def processor_of(folder: Path) -> Any:
    """The checkpoint's processor. Without torchvision it takes no videos, and pictures by transformers' Pillow classes."""
    if is_torchvision_available():
        processor = AutoProcessor.from_pretrained(folder)
        if hasattr(processor, "video_processor"):
            processor.video_processor.fetch_videos = _fetch_videos
        return processor
    settings, _ = ProcessorMixin.get_processor_dict(folder)
    stock = _class_of(folder, settings)

    class WithoutVideo(stock):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return type(argument)

    parts = {name: _part(name, folder) for name in WithoutVideo.get_attributes()}
    known = inspect.signature(stock.__init__).parameters.keys() - parts.keys()
    return WithoutVideo(**parts, **{name: value for name, value in settings.items() if name in known})


def _fetch_videos(videos: str | list[Any], sample_indices_fn: Any = None) -> Any:
    """What transformers' own does, but by PyAV, which it has a decoder for too, rather than by torchcodec."""
    if isinstance(videos, list):
        return list(zip(*(_fetch_videos(video, sample_indices_fn) for video in videos), strict=True))
    return load_video(videos, backend="pyav", sample_indices_fn=sample_indices_fn)


def _part(name: str, folder: Path) -> Any:
    if name == "video_processor":
        return SimpleNamespace(model_input_names=[], num_frames=None, fps=None)
    return getattr(transformers, AUTO[name]).from_pretrained(folder)


def _class_of(folder: Path, settings: dict[str, Any]) -> Any:
    """The processor class, from its module: where torchvision is missing, transformers itself shows a placeholder for some."""
    name = settings.get("processor_class") or PROCESSOR_MAPPING_NAMES[AutoConfig.from_pretrained(folder).model_type]
    if name == "PixtralProcessor":
        # All that its module wants of the torchvision module is a function that the Pillow module has, too.
        place = "transformers.models.pixtral.image_processing_pixtral"
        sys.modules[place] = importlib.import_module("transformers.models.pixtral.image_processing_pil_pixtral")
        try:
            return importlib.import_module("transformers.models.pixtral.processing_pixtral").PixtralProcessor
        finally:
            del sys.modules[place]
    return getattr(transformers, name)
