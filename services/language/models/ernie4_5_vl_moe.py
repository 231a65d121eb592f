"""ERNIE 4.5 VL: pictures, videos and the marks around them go to experts of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.language.models.generic import LanguageHalf
from shared.identity import Grid, Modality


class ErnieLanguageHalf(LanguageHalf):
    """Tells the decoder which tokens of a prompt are seen. Those of an answer are text, whatever they are."""

    def __init__(self, config: Any, modalities: Sequence[Modality]) -> None:
        super().__init__(config, modalities)
        marks = [f"{kind}_{part}" for kind in ("image", "video") for part in ("token_id", "start_token_id", "end_token_id")]
        self._seen = frozenset(getattr(config, mark) for mark in marks)

    def tokens_of(self, modality: Modality, grid: Grid) -> int | None:
        """Frames of a video are merged in time, too."""
        tokens = super().tokens_of(modality, grid)
        if tokens is None or modality != "video":
            return tokens
        together: int = self.config.vision_config.temporal_merge_size
        return None if grid[0] % together else tokens // together

    def token_inputs(self, token_ids: Sequence[int], prompt: bool) -> dict[str, Tensor]:
        """``moe_mm_token_type_ids``: 1 for what the experts of pictures compute, 0 for text."""
        return {"moe_mm_token_type_ids": torch.tensor([int(prompt and token in self._seen) for token in token_ids])}
