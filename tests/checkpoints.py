"""Tiny checkpoints with random weights, of the families that tests need; made in seconds, in a temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    LlavaConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
)

from tests.processes import DEMO_MODEL

WIDTH = 64


def _text(tokenizer: Any, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        **more,
    }


def _qwen3_vl(tokenizer: Any, config: type[Any], **text: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 8,
        "out_hidden_size": WIDTH,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
        "initializer_range": 0.2,
    }
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in SPECIAL.items()}
    return config(text_config=_text(tokenizer, rope_parameters=rope, **text), vision_config=vision, **ids)


SPECIAL = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llava")


def _qwen2(tokenizer: Any, config: type[Any], **vision: Any) -> Any:
    text = _text(tokenizer, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]})
    del text["head_dim"]
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in SPECIAL.items()}
    common = {"depth": 2, "num_heads": 2, "patch_size": 8, "initializer_range": 0.2}
    return config(text_config=text, vision_config={**common, **vision}, **ids)


def make(family: str, folder: Path) -> Path:
    """A checkpoint of ``family`` in ``folder``, with the demo model's tokenizer.

    ``qwen2_vl`` and ``qwen2_5_vl`` have M-RoPE, ``qwen3_vl`` deepstack too, ``qwen3_vl_moe`` experts besides; ``llava`` has
    plain positions and no grid.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO_MODEL)
    torch.manual_seed(1)
    config: Any
    processor: Any = Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 1024, "longest_edge": 128 * 128}
    )
    if family == "qwen2_vl":
        config = _qwen2(tokenizer, Qwen2VLConfig, embed_dim=32, hidden_size=WIDTH, mlp_ratio=2)
    elif family == "qwen2_5_vl":
        sizes = {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": WIDTH}
        config = _qwen2(tokenizer, Qwen2_5_VLConfig, **sizes, window_size=32, fullatt_block_indexes=[1])
    elif family == "qwen3_vl":
        config = _qwen3_vl(tokenizer, Qwen3VLConfig)
    elif family == "qwen3_vl_moe":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        config = _qwen3_vl(tokenizer, Qwen3VLMoeConfig, **experts)
    elif family == "llava":
        vision = {
            "model_type": "clip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "projection_dim": 32,
        }
        text = {"model_type": "llama", **_text(tokenizer)}
        image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=image, image_seq_length=16)
        size = {"height": 32, "width": 32}
        processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size)
    else:
        raise ValueError(family)
    model = AutoModelForImageTextToText.from_config(config)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config.pad_token_id = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    for part in (model, tokenizer, processor):
        part.save_pretrained(folder)
    return folder
