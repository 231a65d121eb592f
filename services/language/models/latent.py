"""Latent attention (DeepSeek-V2, 2024) in its absorbed form: a token's latent is all that is stored of it.

A token's keys and values are products of its latent, for each head ``key = K c`` and ``value = V c``. So a query's score is
``q . (K c) = (K^T q) . c``, and its output ``sum(p V c) = V sum(p c)``: all heads can attend over the latents themselves, as if
these were the keys and values of one shared head, with the small matrices on the side of the query.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_interleave,
)


def use_latents(model: nn.Module) -> None:
    """Changes, in place, how attention modules of DeepSeek-V3's kind compute; parameters and their names stay what they are.

    Where the matrix that makes keys and values is no plain one (as after quantization), the module is left as it is, which is
    right too, but stores the keys and values of all heads.
    """
    for module in model.modules():
        if type(module) is DeepseekV3Attention and type(module.kv_b_proj) is nn.Linear:
            module.__class__ = LatentAttention


class LatentAttention(DeepseekV3Attention):  # type: ignore[misc]
    """The same function of the same parameters, within rounding. It stores ``kv_lora_rank + qk_rope_head_dim`` numbers a token
    instead of ``heads * (qk_nope_head_dim + qk_rope_head_dim + v_head_dim)``, for Kimi K2.5 576 instead of 20,480."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """From ``(batch, tokens, hidden)`` to the same; ``position_embeddings``: cosines, sines ``(batch, tokens, rope)``."""
        query = self._queries(hidden_states)
        content, turned = torch.split(query, [self.qk_nope_head_dim, self.qk_rope_head_dim], -1)
        latent, key = self.kv_a_proj_with_mqa(hidden_states).split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
        latent = self.kv_a_layernorm(latent).unsqueeze(1)
        turn = apply_rotary_pos_emb_interleave if self.config.rope_interleave else apply_rotary_pos_emb
        turned, key = turn(turned, key.unsqueeze(1), *position_embeddings)
        matrices = self.kv_b_proj.weight.view(self.num_heads, -1, self.kv_lora_rank)
        to_keys, to_values = matrices.split([self.qk_nope_head_dim, self.v_head_dim], 1)
        # Positions are no part of the latent: they have numbers of their own, which stand behind it in the keys. Values are the
        # keys too, so that there is one tensor to store; what the positions add to the output is cut off.
        stored = torch.cat([latent, key], -1)
        found, weights = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation](
            self,
            torch.cat([content @ to_keys, turned], -1),
            stored,
            stored,
            attention_mask,
            scaling=self.scaling,
            **more,
        )
        values = found[..., : self.kv_lora_rank].transpose(1, 2) @ to_values.transpose(1, 2)
        return self.o_proj(values.transpose(1, 2).flatten(2)), weights

    def _queries(self, hidden_states: Tensor) -> Tensor:
        """``(batch, heads, tokens, qk_head_dim)``."""
        if self.q_lora_rank is None:
            flat: Tensor = self.q_proj(hidden_states)
        else:
            flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        return flat.view(*flat.shape[:2], self.num_heads, self.qk_head_dim).transpose(1, 2)
