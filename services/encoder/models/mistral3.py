"""The encoder half of Mistral 3, whose class in transformers cannot take a picture of one token by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from services.encoder.models.generic import EncoderHalf
from shared.identity import Modality


class Mistral3EncoderHalf(EncoderHalf):
    """Shows the tower a single picture of one token twice: of only one token in all, transformers drops the axis of tokens."""

    def tower(self, modality: Modality, inputs: dict[str, Tensor]) -> Any:
        tokens = inputs["image_sizes"] // (self.config.vision_config.patch_size * self.config.spatial_merge_size)
        alone = int(tokens.prod(-1).sum()) == 1
        if alone:
            inputs = {name: torch.cat([value, value]) for name, value in inputs.items()}
        output = super().tower(modality, inputs)
        if alone:
            output.pooler_output = output.pooler_output[:1]
        return output
