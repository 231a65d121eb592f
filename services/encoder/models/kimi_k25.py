"""Kimi K2.5: hashes features where they are before they wait on the CPU, and makes a video of several short ones."""

from __future__ import annotations

from typing import Any

from services.encoder.models.detail import LOW_SIDE
from services.encoder.models.generic import EncoderHalf


class KimiEncoderHalf(EncoderHalf):
    """Its processor needs torchvision."""

    precompute_hash_before_cpu_transfer = True

    def low_detail(self) -> dict[str, Any]:
        """It counts patches, and not pixels."""
        processor = self.processor.image_processor
        return {"max_patches": min(processor.max_patches, LOW_SIDE**2 // processor.patch_size**2)}
