"""LLaVA-NeXT, a family that is not served by itself: docs/models.md adds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import LlavaNextConfig, LlavaNextImageProcessorPil

from tests.families.llava import TEMPLATE
from tests.families.parts import make_tokenizer, save, text, tower


def llava_next(folder: Path) -> Path:
    """Pictures are cut into tiles of 32 pixels, each row of which ends with an embedding of its own."""
    tokenizer = make_tokenizer(TEMPLATE, "<image>")
    grid: list[list[int]] = [[32, 64], [64, 32], [64, 64]]
    config = LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **tower(num_hidden_layers=3)},
        text_config={"model_type": "llama", **text(tokenizer)},
        image_grid_pinpoints=grid,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
    )
    square: dict[str, Any] = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    settings = {"patch_size": 8, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    pictures = LlavaNextImageProcessorPil(**square, image_grid_pinpoints=grid)
    return save(folder, config, tokenizer, "LlavaNextProcessor", [pictures], settings)
