"""What is known of a language half from its configuration and tokenizer, without its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from shared.checkpoint import pick_device, pick_dtype
from shared.halves import empty_half
from shared.identity import Grid, MediaItem, Modality


@dataclass(frozen=True, slots=True)
class Positions:
    """``ids`` is ``(axes, tokens)`` int64: one axis, or three for M-RoPE. The token after the last is at ``following``."""

    ids: Tensor
    following: int


class LanguageFacts:
    """Token ids, sizes and positions of one checkpoint, for everything in front of the engine."""

    def __init__(self, folder: Path, device: str = "auto", dtype: str = "auto") -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        if self.tokenizer.chat_template is None:
            raise ValueError(f"{folder} has no chat template, which chat completions need")
        self.config: Any = AutoConfig.from_pretrained(folder)
        self.dtype = pick_dtype(dtype, pick_device(device))
        text: Any = self.config.get_text_config()
        self.model_type: str = self.config.model_type
        self.hidden_size: int = text.hidden_size
        self.vocab_size: int = text.vocab_size
        self.context_length: int = text.max_position_embeddings
        self.eos_ids: frozenset[int] = self._end_tokens(folder)
        vision = getattr(self.config, "vision_config", None)
        self.deepstack_levels: int = len(getattr(vision, "deepstack_visual_indexes", None) or ())
        self._merge: int = getattr(vision, "spatial_merge_size", 1)
        # Families with multimodal rotary positions know their items by a grid; the others have a fixed number of tokens.
        self._has_grid = position_axes(self.config) == 3
        self._fixed_tokens: int | None = getattr(self.config, "image_seq_length", None)
        self._base: Any = empty_half(self.config, "language").base_model
        image = getattr(self.config, "image_token_id", None)
        if image is None:
            image = getattr(self.config, "image_token_index", None)
        self.placeholders: dict[Modality, int] = {} if image is None else {"image": cast(int, image)}

    def _end_tokens(self, folder: Path) -> frozenset[int]:
        found: set[int | None] = {self.tokenizer.eos_token_id}
        if (folder / "generation_config.json").is_file():
            declared = GenerationConfig.from_pretrained(folder).eos_token_id
            found.update(declared if isinstance(declared, list) else [declared])
        return frozenset(token for token in found if token is not None)

    def tokens_of(self, grid: Grid | None) -> int | None:
        """Tokens of an item with this grid of patches; None if the family's items cannot have it."""
        if grid is None:
            return None if self._has_grid else self._fixed_tokens
        time, height, width = grid
        if not self._has_grid or min(grid) < 1 or height % self._merge or width % self._merge:
            return None
        return time * height * width // self._merge**2

    def tensor_shapes(self, num_tokens: int) -> dict[str, tuple[int, int]]:
        """The tensors that an item's message must bring, by name."""
        shape = (num_tokens, self.hidden_size)
        return {"embeds": shape, **{f"deepstack.{level}": shape for level in range(self.deepstack_levels)}}

    def positions(self, token_ids: Sequence[int], items: Sequence[MediaItem]) -> Positions:
        """Positions of an expanded prompt; ``items`` in the order of their placeholders."""
        if not (self._has_grid and items):
            return Positions(torch.arange(len(token_ids)).unsqueeze(0), len(token_ids))
        ids = torch.tensor([token_ids])
        grids = torch.tensor([item.grid_thw for item in items])
        kinds = (ids == self.placeholders["image"]).int()
        found, delta = self._base.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)
        return Positions(found[:, 0], len(token_ids) + int(delta.item()))


def position_axes(config: Any) -> int:
    """3 for families with multimodal rotary positions (Qwen2-VL and later), else 1."""
    rope: dict[str, Any] = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return 3 if "mrope_section" in rope else 1
