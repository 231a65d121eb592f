"""``python -m benchmarks.checkpoints``: random-weight Qwen3-VL checkpoints of two sizes, under ``build/checkpoints``.

They have everything that costs time in the real family: deepstack, interleaved M-RoPE, grouped queries, and patches of 16
pixels that merge two by two, so that a picture of 512x512 is 256 tokens. Only visible text has embeddings other than zero. The
head shares them, so every other token's logit is exactly zero, and greedy decoding never chooses it: no answer ends early, and
every token is an event in a stream.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2VLImageProcessorPil, Qwen3VLConfig, Qwen3VLForConditionalGeneration

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINTS = ROOT / "build" / "checkpoints"
TOKENIZER = ROOT / "examples" / "demo_model"
CONTEXT = 4096  # tokens
SEED = 0
RECIPE = "recipe.txt"


@dataclass(frozen=True, slots=True)
class Size:
    """Widths and depths. Both halves have ``layers`` layers; ``vocabulary`` is padded past the tokenizer's."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    mrope_section: tuple[int, int, int]
    vision_hidden: int
    vision_heads: int
    deepstack: tuple[int, ...]
    vocabulary: int


SIZES = {
    "tiny": Size(4, 128, 384, 4, 2, (6, 5, 5), 64, 4, (0, 1, 2), 2048),
    "small": Size(12, 512, 1536, 8, 4, (12, 10, 10), 384, 6, (2, 5, 8), 5120),
}


def config_of(size: Size, tokenizer: Any) -> Any:
    """The checkpoint's configuration, with special tokens where ``tokenizer`` has them."""
    return Qwen3VLConfig(
        text_config={
            "vocab_size": size.vocabulary,
            "hidden_size": size.hidden,
            "intermediate_size": size.intermediate,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "head_dim": size.hidden // size.heads,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": list(size.mrope_section),
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": size.layers,
            "hidden_size": size.vision_hidden,
            "intermediate_size": 4 * size.vision_hidden,
            "num_heads": size.vision_heads,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": size.hidden,
            "num_position_embeddings": 1024,
            "deepstack_visual_indexes": list(size.deepstack),
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        tie_word_embeddings=True,
        dtype="float32",
    )


def image_processor() -> Any:
    """Keeps every picture whose sides are multiples of 32 pixels as it is, from 256x256 up to 4096x4096."""
    return Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 256**2, "longest_edge": 4096**2},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def visible_tokens(tokenizer: Any) -> list[int]:
    """Ids whose text stands alone: neither special nor a part of a character."""
    special = set(tokenizer.all_special_ids)
    texts = {token: tokenizer.decode([token]) for token in range(len(tokenizer)) if token not in special}
    return [token for token, text in texts.items() if text and "\ufffd" not in text]


def build_model(config: Any, tokenizer: Any) -> Any:
    """Seeded random weights, float32, with an embedding of zero for every token that must never be chosen."""
    torch.manual_seed(SEED)
    model = Qwen3VLForConditionalGeneration(config).eval()
    embeddings = model.get_input_embeddings().weight
    never = torch.ones(embeddings.shape[0], dtype=torch.bool)
    never[visible_tokens(tokenizer)] = False
    with torch.no_grad():
        embeddings[never] = 0
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config.pad_token_id = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    return model


def recipe_of(config: Any) -> str:
    """Changes whenever a checkpoint that lies there already should be made anew."""
    parts = (Path(__file__).read_bytes(), config.to_json_string().encode(), (TOKENIZER / "tokenizer.json").read_bytes())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def ensure(name: str, folder: Path = CHECKPOINTS) -> Path:
    """The folder of checkpoint ``name`` (a key of ``SIZES``), made unless it is there already."""
    path = folder / name
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER, model_max_length=CONTEXT)
    config = config_of(SIZES[name], tokenizer)
    recipe, note = recipe_of(config), path / RECIPE
    if note.is_file() and note.read_text() == recipe:
        return path
    note.unlink(missing_ok=True)
    build_model(config, tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    image_processor().save_pretrained(path)
    note.write_text(recipe)  # last, so that an interrupted run is not taken for a checkpoint
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SIZES), help=f"of {', '.join(SIZES)}")
    for name in parser.parse_args().names:
        path = ensure(name)
        model: Any = Qwen3VLForConditionalGeneration.from_pretrained(path)
        print(f"{path}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
