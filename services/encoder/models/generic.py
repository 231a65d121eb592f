"""The vision half of any family whose transformers class has ``get_image_features``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor

from services.encoder.models.patches import preprocess_by
from shared.checkpoint import count_parameters, pick_device, pick_dtype
from shared.errors import media_errors
from shared.halves import load_half
from shared.identity import MediaItem
from shared.products import use_products

GRID = "image_grid_thw"


class VisionHalf:
    """Image processor and tower of one checkpoint. Methods block; the pipeline calls them in threads.

    ``precompute_hash_before_cpu_transfer`` is what ``shared.residency.Family`` says.
    """

    precompute_hash_before_cpu_transfer = False

    def __init__(self, folder: Path, device: str = "auto", dtype: str = "auto") -> None:
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device)
        self.processor: Any = AutoImageProcessor.from_pretrained(folder)
        self._preprocess = preprocess_by(self.processor)
        self._model: Any = load_half(folder, "vision", self.device, self.dtype)
        use_products(self._model)
        self.model_type: str = self._model.config.model_type
        vision = getattr(self._model.config, "vision_config", None)
        self._merge: int = getattr(vision, "spatial_merge_size", 1)

    @property
    def parameters(self) -> dict[str, int]:
        """Numbers of parameters by module."""
        return count_parameters(self._model.named_parameters())

    def preprocess(self, image: Image.Image, param: str | None = None) -> MediaItem:
        """The processor's features of one picture, on the device. ``num_tokens`` is 0 where only the tower can tell.

        Raises:
            InvalidMedia: the processor cannot take the picture (too narrow, for example).
        """
        with media_errors(param):
            features = self._preprocess(image)
        item = MediaItem("image", 0, features={name: value.to(self.device) for name, value in features.items()})
        if GRID in features:
            time, height, width = features[GRID][0].tolist()
            item.grid_thw = (time, height, width)
            item.num_tokens = math.prod(item.grid_thw) // self._merge**2
        return item

    @torch.inference_mode()
    def encode(self, items: Sequence[MediaItem]) -> None:
        """Runs the tower over all ``items`` at once and writes their ``embeds`` and ``deepstack``, on the device."""
        names = items[0].features.keys()
        inputs = {name: torch.cat([item.features[name] for item in items]).to(self.device) for name in names}
        inputs["pixel_values"] = inputs["pixel_values"].to(self.dtype)
        output = self._model.get_image_features(**inputs, return_dict=True)
        if len(output.pooler_output) != len(items):
            # Families that cut pictures into tiles would hand one request's tiles to another.
            raise RuntimeError(f"the tower returned {len(output.pooler_output)} items for {len(items)}")
        levels: Sequence[Sequence[Tensor]] = getattr(output, "deepstack_features", None) or ()
        for index, item in enumerate(items):
            item.embeds = output.pooler_output[index]
            item.deepstack = tuple(level[index] for level in levels)
            item.num_tokens = item.embeds.shape[0]

    def warm_up(self) -> None:
        """Runs one small picture through everything, so that the first request does not pay for lazy set-up."""
        self.encode([self.preprocess(Image.new("RGB", (64, 64), "white"))])
