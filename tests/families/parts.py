"""What tiny checkpoints share: the demo model's tokenizer with a family's tokens, a small decoder, and files as published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from tests.processes import DEMO_MODEL

WIDTH = 64
SPREAD = 0.2
"""Of random weights: with less of it, what a picture shows hardly changes an answer."""

HEADS = 4
"""Of attention, 16 wide; a family whose builder takes ``heads`` can have fewer, wider ones, which vLLM's kernels want."""


def mrope(heads: int = HEADS) -> dict[str, Any]:
    """Rotary positions in three dimensions, half of each head's frequencies for time, the rest for height and width."""
    quarter = WIDTH // heads // 4
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [quarter, quarter // 2, quarter // 2]}


def make_tokenizer(template: str, *tokens: str, named: Mapping[str, str] | None = None, bos: str | None = None) -> Any:
    """The demo model's tokenizer, which also knows ``tokens``.

    ``named`` are those that the family's processor reads as attributes of the tokenizer (``image_token`` for example). With
    ``bos``, the tokenizer puts that token before every text by itself, as Llama's do.
    """
    own = dict(named or {})
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(DEMO_MODEL, extra_special_tokens=own)
    tokenizer.add_special_tokens({"extra_special_tokens": [*tokens, *own.values()]}, replace_extra_special_tokens=False)
    tokenizer.chat_template = template
    if bos is not None:
        tokenizer.add_special_tokens({"bos_token": bos})
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    return tokenizer


def ids(tokenizer: Any, **tokens: str) -> dict[str, int]:
    """The ids of ``tokens``, each of which must be known, by the names that a configuration has for them."""
    found: dict[str, int] = {name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()}
    assert None not in found.values(), f"the tokenizer does not know all of {tokens}"
    return found


def text(tokenizer: Any, heads: int = HEADS, **more: Any) -> dict[str, Any]:
    """The configuration of a small decoder with grouped-query attention: two query heads for each of keys and values."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": WIDTH // heads,
        "max_position_embeddings": 2048,
        "initializer_range": SPREAD,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **more,
    }


def tower(**more: Any) -> dict[str, Any]:
    """The configuration of a small vision transformer for squares of 32 pixels, 16 patches each."""
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "initializer_range": SPREAD,
        **more,
    }


def save(
    folder: Path,
    config: Any,
    tokenizer: Any,
    processor: str,
    parts: Sequence[Any],
    settings: Mapping[str, Any] | None = None,
    video: Mapping[str, Any] | None = None,
    nested: bool = False,
) -> Path:
    """A checkpoint with random weights in ``folder``, in files as published: the weights of ``config``'s own class, the
    tokenizer with its chat template, the image processor or feature extractor (``parts``, or their settings), the ``video``
    processor's settings, and the ``settings`` of the ``processor`` class.

    ``nested`` puts all settings into one file, as transformers writes them nowadays; else each has its own, as most published
    checkpoints have it.
    """
    torch.manual_seed(1)
    model = MODEL_FOR_MULTIMODAL_LM_MAPPING[type(config)](config)
    _stir(model)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    written = {"processor_class": processor, **(settings or {})}
    if nested:
        written["image_processor"] = parts[0].to_dict()
        if video is not None:
            written["video_processor"] = dict(video)
    else:
        for part in parts:
            if isinstance(part, Mapping):
                _write(folder / "preprocessor_config.json", part)
            else:
                part.save_pretrained(folder)
        if video is not None:
            _write(folder / "video_preprocessor_config.json", video)
    _write(folder / "processor_config.json", written)
    return folder


@torch.no_grad()
def _stir(model: torch.nn.Module) -> None:
    """Gives random values to parameters that start out as zeros or ones, so that a model that forgets one is found out."""
    for parameter in model.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_(torch.randn_like(parameter) * 0.1)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
