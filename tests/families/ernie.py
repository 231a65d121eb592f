"""ERNIE 4.5 VL: experts of their own for the tokens of pictures, and for the marks around them."""

from __future__ import annotations

from pathlib import Path

from transformers import Ernie4_5_VLMoeConfig, Ernie4_5_VLMoeImageProcessorPil

from tests.families.parts import SPREAD, ids, make_tokenizer, save, text

TEMPLATE = """\
{% set pictures = namespace(count=0) %}{% set videos = namespace(count=0) %}{{ bos_token }}{% for message in messages %}\
{% if message.role == 'user' %}User: {% elif message.role == 'assistant' %}Assistant: {% endif %}\
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}{% set pictures.count = pictures.count + 1 %}Picture {{ pictures.count }}:\
<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>\
{% elif part.type == 'video' %}{% set videos.count = videos.count + 1 %}Video {{ videos.count }}:\
<|VIDEO_START|><|VIDEO_PLACEHOLDER|><|VIDEO_END|>\
{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '\\n' }}\
{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"""
NAMED = {
    "image_token": "<|IMAGE_PLACEHOLDER|>",
    "image_start_token": "<|IMAGE_START|>",
    "image_end_token": "<|IMAGE_END|>",
    "video_token": "<|VIDEO_PLACEHOLDER|>",
    "video_start_token": "<|VIDEO_START|>",
    "video_end_token": "<|VIDEO_END|>",
}


def ernie4_5_vl_moe(folder: Path) -> Path:
    tokenizer = make_tokenizer(TEMPLATE, named=NAMED)
    tokenizer.add_special_tokens({"bos_token": "<|begin_of_sentence|>"})
    decoder = text(
        tokenizer,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
        moe_num_experts=4,
        moe_k=2,
        moe_num_shared_experts=1,
        moe_intermediate_size=[48, 32],
        tie_word_embeddings=False,
    )
    del decoder["head_dim"]
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 8,
        "initializer_range": SPREAD,
    }
    config = Ernie4_5_VLMoeConfig(
        text_config=decoder,
        vision_config=vision,
        tie_word_embeddings=False,
        **ids(tokenizer, **{f"{name}_id": token for name, token in NAMED.items()}),
    )
    size = {"shortest_edge": 1024, "longest_edge": 128 * 128}
    patches = {"patch_size": 8, "merge_size": 2}
    return save(
        folder,
        config,
        tokenizer,
        "Ernie4_5_VLMoeProcessor",
        [Ernie4_5_VLMoeImageProcessorPil(**patches, size=size)],
        video={
            "video_processor_type": "Ernie4_5_VLMoeVideoProcessor",
            **patches,
            "size": size,
            "min_frames": 4,
            "draw_on_frames": False,
        },
    )
