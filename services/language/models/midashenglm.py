"""The language half of MiDashengLM: the text decoder of Qwen2.5-Omni, under names that transformers has no class for."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel, Qwen2_5OmniThinkerTextModel

from services.language.models.generic import LanguageHalf
from shared.midashenglm import MiDashengLMConfig


class MiDashengDecoder(PreTrainedModel):  # type: ignore[misc]
    """The part of the published model that writes, under its published names: ``decoder.model`` and ``decoder.lm_head``."""

    config_class = MiDashengLMConfig
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: MiDashengLMConfig) -> None:
        super().__init__(config)
        text = copy.deepcopy(config.text_config)
        # Rotary frequencies are dealt out to three axes there. All have the same positions here, so one may have them all.
        width = getattr(text, "head_dim", text.hidden_size // text.num_attention_heads)
        text.rope_parameters["mrope_section"] = [width // 2]
        self.decoder = nn.ModuleDict(
            {
                "model": Qwen2_5OmniThinkerTextModel(text),
                "lm_head": nn.Linear(text.hidden_size, text.vocab_size, bias=False),
            }
        )
        self.post_init()

    @property
    def lm_head(self) -> Any:
        """From hidden states to scores of tokens."""
        return self.decoder["lm_head"]

    def get_decoder(self) -> Any:
        """What makes the hidden states."""
        return self.decoder["model"]

    def get_input_embeddings(self) -> Any:
        """The embeddings of tokens."""
        return self.get_decoder().embed_tokens


class MiDashengLanguageHalf(LanguageHalf):
    """As generic as a family is that has one position a token; only the weights are found elsewhere."""

    own_class = MiDashengDecoder
