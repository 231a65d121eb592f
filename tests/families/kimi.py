"""Kimi K2.5: a decoder with latent attention and experts. Its image processor needs torchvision."""

from __future__ import annotations

from pathlib import Path

from transformers import Kimi_K25Config

from tests.families.parts import ids, make_tokenizer, save, text

TEMPLATE = """\
{% for message in messages %}<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>\
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>
{% elif part.type == 'video' %}<|kimi_k25_video_placeholder|>\
{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}\
{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|><think>{% endif %}"""
MARKS = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<think>", "</think>", "<|media_content|>")
SPECIAL = {
    "image_token_id": "<|media_pad|>",
    "video_token_id": "<|kimi_k25_video_placeholder|>",
    "vision_start_token_id": "<|media_begin|>",
    "vision_end_token_id": "<|media_end|>",
}


def kimi_k25(folder: Path) -> Path:
    tokenizer = make_tokenizer(TEMPLATE, *MARKS, *SPECIAL.values())
    decoder = text(
        tokenizer,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        num_nextn_predict_layers=0,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 50000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 1.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
    del decoder["head_dim"]
    config = Kimi_K25Config(
        text_config={"model_type": "deepseek_v3", **decoder},
        vision_config={
            "patch_size": 8,
            "pos_emb_height": 8,
            "pos_emb_width": 8,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
        },
        projection_hidden_size=32,
        tie_word_embeddings=False,
        **ids(tokenizer, **SPECIAL),
    )
    patches = {"patch_size": 8, "merge_size": 2, "size": {"max_height": 16, "max_width": 16}}
    return save(
        folder,
        config,
        tokenizer,
        "Kimi_K25Processor",
        [{"image_processor_type": "Kimi_K25ImageProcessor", **patches, "max_patches": 256}],
        video={"video_processor_type": "Kimi_K25VideoProcessor", **patches, "max_patches": 64},
    )
