"""LLaVA-OneVision: looks less closely at each picture where a request has several, or asks for low detail."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor

from services.encoder.media import Media
from services.encoder.models.generic import EncoderHalf
from shared.control import LOW_DETAIL
from shared.identity import MediaItem, Modality

_COUNTS = "batch_num_images"
"""Transformers' word for how many pictures each conversation has."""


class OneVisionEncoderHalf(EncoderHalf):
    """One of several pictures is prepared as if beside another one, and is told by the counts that its features lack. So is
    one of low detail: it is a single tile then."""

    def features(self, media: Media, form: str) -> MediaItem:
        if not {"several", LOW_DETAIL}.intersection(form.split()) or not isinstance(media, Image.Image):
            return super().features(media, form)
        both = self.processed("image", 2, images=[[media, Image.new("RGB", (1, 1))]])
        both.features = {name: value[:1] for name, value in both.features.items() if name != _COUNTS}
        return both

    def tower(self, modality: Modality, inputs: dict[str, Tensor]) -> Any:
        if modality == "image" and _COUNTS not in inputs:
            inputs = inputs | {_COUNTS: torch.tensor([max(2, len(inputs["image_sizes"]))])}
        return super().tower(modality, inputs)
