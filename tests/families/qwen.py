"""The Qwen-VL families: M-RoPE, a grid of patches of any size, and deepstack in the third generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLConfig, Qwen2VLConfig, Qwen2VLImageProcessorPil, Qwen3VLConfig, Qwen3VLMoeConfig

from tests.families.parts import HEADS, SPREAD, WIDTH, ids, make_tokenizer, mrope, save, text

TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SPECIAL = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
PATCHES = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2}
SIZE = {"shortest_edge": 1024, "longest_edge": 128 * 128}


def _save(folder: Path, config: Any, tokenizer: Any, generation: str, film: str, **video: Any) -> Path:
    return save(
        folder,
        config,
        tokenizer,
        f"{generation}Processor",
        [Qwen2VLImageProcessorPil(**PATCHES, size=SIZE)],
        video={"video_processor_type": f"{film}VideoProcessor", **PATCHES, "size": SIZE, **video},
    )


def _second(tokenizer: Any, config: type[Any], heads: int, **vision: Any) -> Any:
    decoder = text(tokenizer, heads, rope_parameters=mrope(heads))
    del decoder["head_dim"]
    common = {"depth": 2, "num_heads": 2, "patch_size": 8, "initializer_range": SPREAD}
    return config(text_config=decoder, vision_config={**common, **vision}, **ids(tokenizer, **SPECIAL))


def _third(tokenizer: Any, config: type[Any], heads: int, **more: Any) -> Any:
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 8,
        "out_hidden_size": WIDTH,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
        "initializer_range": SPREAD,
    }
    decoder = text(tokenizer, heads, rope_parameters={**mrope(heads), "mrope_interleaved": True}, **more)
    return config(text_config=decoder, vision_config=vision, **ids(tokenizer, **SPECIAL))


def qwen2_vl(folder: Path, heads: int = HEADS) -> Path:
    tokenizer = make_tokenizer(TEMPLATE)
    config = _second(tokenizer, Qwen2VLConfig, heads, embed_dim=32, hidden_size=WIDTH, mlp_ratio=2)
    return _save(folder, config, tokenizer, "Qwen2VL", "Qwen2VL", do_sample_frames=True, fps=2)


def qwen2_5_vl(folder: Path, heads: int = HEADS) -> Path:
    tokenizer = make_tokenizer(TEMPLATE)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": WIDTH}
    config = _second(tokenizer, Qwen2_5_VLConfig, heads, **sizes, window_size=32, fullatt_block_indexes=[1])
    return _save(folder, config, tokenizer, "Qwen2_5_VL", "Qwen2VL", do_sample_frames=True, fps=2)


def qwen3_vl(folder: Path, heads: int = HEADS) -> Path:
    tokenizer = make_tokenizer(TEMPLATE)
    return _save(folder, _third(tokenizer, Qwen3VLConfig, heads), tokenizer, "Qwen3VL", "Qwen3VL")


def qwen3_vl_moe(folder: Path, heads: int = HEADS) -> Path:
    tokenizer = make_tokenizer(TEMPLATE)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    _save(folder, _third(tokenizer, Qwen3VLMoeConfig, heads, **experts), tokenizer, "Qwen3VL", "Qwen3VL")
    _as_published(folder / "model.safetensors")
    return folder


def _as_published(weights: Path) -> None:
    """Experts' matrices the other way round than transformers has them in memory."""
    tensors = load_file(weights)
    turned = {name: tensor.mT.contiguous() if ".mlp.experts." in name else tensor for name, tensor in tensors.items()}
    save_file(turned, weights, metadata={"format": "pt"})
