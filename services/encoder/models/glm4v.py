"""GLM-4.1V and 4.5V, whose processor counts pixels of a picture as often as a patch has frames."""

from __future__ import annotations

from typing import Any

from services.encoder.models.detail import LOW_SIDE, area_settings
from services.encoder.models.generic import EncoderHalf


class GlmEncoderHalf(EncoderHalf):
    """Its limits are for all frames together."""

    def low_detail(self) -> dict[str, Any]:
        processor = self.processor.image_processor
        return area_settings(processor, LOW_SIDE**2 * processor.temporal_patch_size)
