"""The language half of any family: tokenizer, decoder and head, and what is known of embeddings without computing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoTokenizer, Cache, DynamicCache, GenerationConfig

from shared.checkpoint import count_parameters, pick_device, pick_dtype
from shared.halves import load_half
from shared.identity import Grid, MediaItem, Modality


@dataclass(frozen=True, slots=True)
class Positions:
    """``ids`` is ``(axes, tokens)`` int64: one axis, or three for M-RoPE. The token after the last is at ``following``."""

    ids: Tensor
    following: int


class LanguageHalf:
    """Decoder and head of one checkpoint. Methods block; the engine calls them in its own thread."""

    def __init__(self, folder: Path, device: str = "auto", dtype: str = "auto") -> None:
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = load_half(folder, "language", self.device, self.dtype)
        self._decoder: Any = self._model.get_decoder()
        self.config: Any = self._model.config
        text: Any = self.config.get_text_config()
        self.model_type: str = self.config.model_type
        self.hidden_size: int = text.hidden_size
        self.vocab_size: int = text.vocab_size
        self.context_length: int = text.max_position_embeddings
        self.eos_ids: frozenset[int] = self._end_tokens(folder)
        vision = getattr(self.config, "vision_config", None)
        self.deepstack_levels: int = len(getattr(vision, "deepstack_visual_indexes", None) or ())
        self._merge: int = getattr(vision, "spatial_merge_size", 1)
        rope: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
        self._has_mrope = "mrope_section" in rope and hasattr(self._model.base_model, "get_rope_index")
        image = getattr(self.config, "image_token_id", None) or getattr(self.config, "image_token_index", None)
        self.placeholders: dict[Modality, int] = {} if image is None else {"image": cast(int, image)}

    def _end_tokens(self, folder: Path) -> frozenset[int]:
        found: set[int] = set()
        if (folder / "generation_config.json").is_file():
            declared = GenerationConfig.from_pretrained(folder).eos_token_id
            found.update(declared if isinstance(declared, list) else [declared])
        found.add(self.tokenizer.eos_token_id)
        return frozenset(token for token in found if token is not None)

    @property
    def parameters(self) -> dict[str, int]:
        """Numbers of parameters by module."""
        return count_parameters(self._model.named_parameters())

    def tokens_of(self, grid: Grid | None) -> int | None:
        """The number of tokens that a grid of patches must have, where the family has such a grid."""
        return None if grid is None else math.prod(grid) // self._merge**2

    def tensor_shapes(self, num_tokens: int) -> dict[str, tuple[int, int]]:
        """The tensors that an item's message must bring, by name."""
        shape = (num_tokens, self.hidden_size)
        return {"embeds": shape, **{f"deepstack.{level}": shape for level in range(self.deepstack_levels)}}

    def positions(self, token_ids: Sequence[int], items: Sequence[MediaItem]) -> Positions:
        """Positions of an expanded prompt; ``items`` in the order of their placeholders."""
        if not (self._has_mrope and items):
            return Positions(torch.arange(len(token_ids)).unsqueeze(0), len(token_ids))
        ids = torch.tensor([token_ids])
        grids = torch.tensor([item.grid_thw for item in items])
        kinds = (ids == self.placeholders["image"]).int()
        found, delta = self._model.base_model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)
        return Positions(found[:, 0], len(token_ids) + int(delta.item()))

    def new_cache(self) -> Cache:
        """An empty key/value cache for one sequence."""
        return DynamicCache(config=self.config.get_text_config())

    @torch.inference_mode()
    def prefill(
        self, token_ids: Sequence[int], positions: Positions, spans: Sequence[tuple[int, MediaItem]], cache: Cache
    ) -> Tensor:
        """Logits ``(vocabulary,)`` after the prompt. Each span puts an item's embeddings at its start."""
        ids = torch.tensor([token_ids], device=self.device)
        embeds = self._decoder.get_input_embeddings()(ids)
        mask = torch.zeros(ids.shape, dtype=torch.bool, device=self.device)
        for start, item in spans:
            assert item.embeds is not None
            embeds[0, start : start + item.num_tokens] = item.embeds.to(self.device, self.dtype)
            mask[0, start : start + item.num_tokens] = True
        extra: dict[str, Any] = {}
        if spans and self.deepstack_levels:
            levels = zip(*(item.deepstack for _, item in spans), strict=True)
            deep = [torch.cat(level).to(self.device, self.dtype) for level in levels]
            extra = {"visual_pos_masks": mask, "deepstack_visual_embeds": deep}
        return self._forward(embeds, positions.ids, cache, extra)

    @torch.inference_mode()
    def decode(self, token_id: int, position: int, cache: Cache) -> Tensor:
        """Logits ``(vocabulary,)`` after one more token."""
        embeds = self._decoder.get_input_embeddings()(torch.tensor([[token_id]], device=self.device))
        axes = 3 if self._has_mrope else 1
        return self._forward(embeds, torch.full((axes, 1), position), cache, {})

    def warm_up(self) -> None:
        """Runs a short prompt and one more token, so that the first request does not pay for lazy set-up."""
        cache = self.new_cache()
        ids = [0, 1, 2]
        self.prefill(ids, self.positions(ids, []), [], cache)
        self.decode(0, len(ids), cache)

    def _forward(self, embeds: Tensor, positions: Tensor, cache: Cache, extra: dict[str, Any]) -> Tensor:
        at = positions.to(self.device)
        if self._has_mrope:
            # Plain text has the same position on all three axes.
            at = at.expand(3, -1).unsqueeze(1)
        hidden = self._decoder(
            inputs_embeds=embeds, position_ids=at, cache=cache, use_cache=True, return_dict=True, **extra
        ).last_hidden_state
        logits: Tensor = self._model.lm_head(hidden[:, -1])
        return logits[0].float()
