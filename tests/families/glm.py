"""GLM-4.1V and GLM-4.5V: M-RoPE with rotations of half of each head; videos are pictures with times between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Glm4vConfig, Glm4vImageProcessorPil, Glm4vMoeConfig

from tests.families.parts import SPREAD, WIDTH, ids, make_tokenizer, save, text

TEMPLATE = """\
[gMASK]<sop>
{% for message in messages %}<|{{ message.role }}|>
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|begin_of_image|><|image|><|end_of_image|>\
{% elif part.type == 'video' %}<|begin_of_video|><|video|><|end_of_video|>\
{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
SPECIAL = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}
PATCHES = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2}
SIZE = {"shortest_edge": 1024, "longest_edge": 2 * 128 * 128}


def _save(folder: Path, config: type[Any], **more: Any) -> Path:
    tokenizer = make_tokenizer(TEMPLATE, "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", *SPECIAL.values())
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    decoder = text(tokenizer, rope_parameters=rope, **more)
    del decoder["head_dim"]
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "out_hidden_size": WIDTH,
        "initializer_range": SPREAD,
    }
    return save(
        folder,
        config(text_config=decoder, vision_config=vision, **ids(tokenizer, **SPECIAL)),
        tokenizer,
        "Glm4vProcessor",
        [Glm4vImageProcessorPil(**PATCHES, size=SIZE)],
        video={
            "video_processor_type": "Glm4vVideoProcessor",
            **PATCHES,
            "size": SIZE,
            "max_image_size": {"longest_edge": 32768},
        },
    )


def glm4v(folder: Path) -> Path:
    return _save(folder, Glm4vConfig)


def glm4v_moe(folder: Path) -> Path:
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1}
    return _save(folder, Glm4vMoeConfig, **experts)
