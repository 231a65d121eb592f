"""LLaVA 1.5, whose pictures are squares of a fixed number of tokens, and LLaVA-OneVision, which cuts them into tiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import (
    CLIPImageProcessorPil,
    LlavaConfig,
    LlavaOnevisionConfig,
    LlavaOnevisionImageProcessorPil,
)

from tests.families.parts import HEADS, ids, make_tokenizer, save, text, tower

TEMPLATE = """\
{% for message in messages %}{{ message.role | upper }}: \
{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image>
{% endfor %}{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }} {% endfor %}\
{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"""

ONEVISION = """\
{% for message in messages %}<|im_start|>{{ message.role }} \
{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}\
{% for part in message.content | selectattr('type', 'equalto', 'video') %}<video>{% endfor %}\
{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ '\\n' + part.text }}{% endfor %}<|im_end|>\
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def llava(folder: Path, heads: int = HEADS) -> Path:
    """Its tokenizer puts a token before the prompt that its template does not know of; the template is in a file of its own."""
    tokenizer = make_tokenizer(TEMPLATE, "<image>", bos="<s>")
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **tower(num_hidden_layers=3)},
        text_config={"model_type": "llama", **text(tokenizer, heads)},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
    )
    pictures = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    settings = {"patch_size": 8, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    save(folder, config, tokenizer, "LlavaProcessor", [pictures], settings)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def llava_onevision(folder: Path, heads: int = HEADS) -> Path:
    """Tiles of 32 pixels; a picture of more than 9 of them has its features scaled down."""
    tokenizer = make_tokenizer(ONEVISION, "<image>", "<video>")
    grid: list[list[int]] = [[32 * height, 32 * width] for height in range(1, 5) for width in range(1, 5)]
    config = LlavaOnevisionConfig(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **tower()},
        text_config={"model_type": "qwen2", **text(tokenizer, heads)},
        image_grid_pinpoints=grid,
        **ids(tokenizer, image_token_index="<image>", video_token_index="<video>"),
    )
    square: dict[str, Any] = {"size": {"height": 32, "width": 32}}
    settings = {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"}
    return save(
        folder,
        config,
        tokenizer,
        "LlavaOnevisionProcessor",
        [LlavaOnevisionImageProcessorPil(**square, image_grid_pinpoints=grid)],
        settings,
        {"video_processor_type": "LlavaOnevisionVideoProcessor", **square, "do_sample_frames": True, "num_frames": 4},
    )
