"""Gemma 3: a picture is a fixed number of tokens that see each other, between tokens and empty lines of its own."""

from __future__ import annotations

from pathlib import Path

from transformers import Gemma3Config, Gemma3ImageProcessorPil

from tests.families.parts import ids, make_tokenizer, save, text, tower

TEMPLATE = """\
{{ bos_token }}{% for message in messages %}<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{% if message.content is string %}{{ message.content | trim }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<start_of_image>{% elif part.type == 'text' %}{{ part.text | trim }}{% endif %}{% endfor %}\
{% endif %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""


def gemma3(folder: Path) -> Path:
    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer(TEMPLATE, "<start_of_turn>", "<end_of_turn>", named=named, bos="<bos>")
    decoder = text(
        tokenizer,
        query_pre_attn_scalar=16,
        sliding_window=16,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        tie_word_embeddings=False,
    )
    config = Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **tower()},
        text_config=decoder,
        mm_tokens_per_image=4,
        tie_word_embeddings=False,
        **ids(
            tokenizer,
            image_token_index="<image_soft_token>",
            boi_token_index="<start_of_image>",
            eoi_token_index="<end_of_image>",
        ),
    )
    pictures = Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, image_seq_length=4)
    return save(folder, config, tokenizer, "Gemma3Processor", [pictures], {"image_seq_length": 4})
