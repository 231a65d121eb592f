"""Kimi K2.5: a DeepSeek-V3 that takes token ids as they are given."""

from __future__ import annotations

import torch
from torch import Tensor

from services.language.models.generic import LanguageHalf


class KimiLanguageHalf(LanguageHalf):
    """Has one kind of position, for text and pictures alike."""

    prefer_tokenized_input = True

    def embedded(self, token_ids: Tensor) -> Tensor:
        """Token 0 stands for those of items, also in answers: transformers looks none of them up."""
        return token_ids.masked_fill(torch.isin(token_ids, torch.tensor(sorted(self.media_ids))), 0)
