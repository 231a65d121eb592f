"""Mistral 3, and Pixtral in the form of LLaVA: rows of tokens of any length, each with a token at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import LlavaConfig, Mistral3Config, PixtralImageProcessorPil

from tests.families.parts import make_tokenizer, save, text, tower

TEMPLATE = """\
{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}</s>{% else %}[INST]\
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}[IMG]{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}[/INST]\
{% endif %}{% endfor %}"""


def _tokenizer() -> Any:
    return make_tokenizer(TEMPLATE, "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "</s>", bos="<s>")


def _save(folder: Path, config: Any, tokenizer: Any, merge: int) -> Path:
    pictures = PixtralImageProcessorPil(size={"longest_edge": 96}, patch_size={"height": 8, "width": 8})
    return save(folder, config, tokenizer, "PixtralProcessor", [pictures], {"patch_size": 8, "spatial_merge_size": merge})


def mistral3(folder: Path) -> Path:
    tokenizer = _tokenizer()
    config = Mistral3Config(
        vision_config={"model_type": "pixtral", **tower(image_size=96)},
        text_config={"model_type": "mistral", "sliding_window": None, **text(tokenizer)},
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    return _save(folder, config, tokenizer, 2)


def pixtral(folder: Path) -> Path:
    tokenizer = _tokenizer()
    config = LlavaConfig(
        vision_config={"model_type": "pixtral", **tower(image_size=96)},
        text_config={"model_type": "mistral", "sliding_window": None, **text(tokenizer)},
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        image_seq_length=1,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return _save(folder, config, tokenizer, 1)
