"""Decoders that the engine would get wrong, or cannot run at all, are refused at start, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    Phi3Config,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from services.language.engine.interface import EngineStartError
from services.language.engine.torch.runner import Runner
from services.language.models.generic import LanguageHalf
from tests.unit.engine.decoders import KINDS, MROPE, SIZES


def refusal(model: Any) -> str:
    with pytest.raises(EngineStartError) as refused:
        Runner(LanguageHalf(model.config, ["image"]), model, torch.device("cpu"), torch.float32, block_size=4)
    return str(refused.value)


def causal(config: Any) -> Any:
    return AutoModelForCausalLM.from_config(config)


def test_layers_that_keep_a_state_of_their_own() -> None:
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
    kinds = ["linear_attention", "linear_attention", "full_attention"]
    text = {**SIZES, **linear, "layer_types": kinds, "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}}
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision))
    assert "qwen3_5 cannot run on the paged engine: it has layers of the kind linear_attention" in refusal(model)


def test_attention_in_chunks() -> None:
    """Transformers tells attention of it by a mask alone, which the engine does not read."""
    config = Llama4TextConfig(**SIZES, intermediate_size_mlp=96, num_local_experts=2, attention_chunk_size=8, no_rope_layers=[])
    assert "chunked_attention" in refusal(causal(config))


def test_attention_sinks() -> None:
    model = causal(GptOssConfig(**SIZES, num_local_experts=2, layer_types=KINDS))
    assert "gpt_oss cannot run on the paged engine: attention sinks" in refusal(model)


def test_positions_that_depend_on_the_rest_of_the_batch() -> None:
    longest = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert "of the type dynamic" in refusal(causal(LlamaConfig(**SIZES, rope_parameters=longest)))
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    assert "of the type longrope" in refusal(causal(Phi3Config(**SIZES, rope_parameters=rope)))
