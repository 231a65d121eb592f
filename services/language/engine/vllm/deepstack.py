"""Qwen3-VL in vLLM without its tower, but with deepstack.

vLLM leaves the vision tower out where no raw pictures are allowed, and then takes it that nothing brings deepstack levels
either: it would merge rows of ``hidden * (1 + levels)`` as if they were ``hidden`` wide. Embeddings that come from an encoder
bring them, so these classes keep the levels' buffers that vLLM's own classes have when the tower is there; all else is theirs.
They go by names of their own, so that a vLLM that does not know them refuses the model and does not answer wrongly, and other
users of the same vLLM keep its classes.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.model_executor.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration


class DividedQwen3VL(Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """The language half of a Qwen3-VL."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        _keep_deepstack(self, vllm_config)


class DividedQwen3VLMoe(Qwen3VLMoeForConditionalGeneration):  # type: ignore[misc]
    """The language half of a Qwen3-VL with experts."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        _keep_deepstack(self, vllm_config)


def _keep_deepstack(model: Any, vllm_config: VllmConfig) -> None:
    """Makes room for the levels of as many tokens as a step computes."""
    levels = len(getattr(model.config.vision_config, "deepstack_visual_indexes", None) or ())
    if model.use_deepstack or not levels:
        return
    rows = vllm_config.scheduler_config.max_num_batched_tokens
    model.use_deepstack = True
    model.deepstack_num_level = levels
    model.multiscale_dim = model.visual_dim * levels
    model.deepstack_input_embeds = [torch.zeros(rows, model.config.text_config.hidden_size) for _ in range(levels)]
    model.deepstack_input_embeds_num_tokens = 0
