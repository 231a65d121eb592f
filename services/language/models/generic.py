"""The language half of any family whose transformers class is called uniformly; made of the configuration alone.

The service in front asks it what items are in a prompt; the engine's process has it load the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from services.language.engine.interface import Span
from services.language.prompt.expansion import spans_of
from shared.families import media_token
from shared.halves import Sketch, empty_half, load_half, sketch_half
from shared.identity import Grid, MediaItem, Modality
from shared.weights import Stored

_KINDS: dict[Modality, int] = {"image": 1, "video": 2, "audio": 3}
"""Transformers' numbers of modalities (``mm_token_type_ids``); 0 is text."""


@dataclass(frozen=True, slots=True)
class Positions:
    """``ids`` is ``(axes, tokens)`` int64: one axis, or three for M-RoPE. The token after the last is at ``following``."""

    ids: Tensor
    following: int


class LanguageHalf:
    """What a family's language half needs of prompts and items. A family file overrides what differs.

    ``placeholders`` are the tokens of an unexpanded prompt that stand for one item each, by what the family takes;
    ``media_ids`` are the tokens of an expanded one whose embeddings come from items.
    """

    prefer_tokenized_input = False
    """The prompt's text is tokenized once, before its items are known: text at the edges of items becomes tokens of its own."""

    bidirectional = False
    """Tokens of one item see each other in both directions."""

    own_class: Any = None
    """The class of this half, where transformers has no class of the undivided model that it can be cut out of."""

    def __init__(self, config: Any, modalities: Sequence[Modality]) -> None:
        self.config = config
        vision = getattr(config, "vision_config", None)
        self.hidden_size: int = config.get_text_config().hidden_size
        self.deepstack_levels: int = len(getattr(vision, "deepstack_visual_indexes", None) or ())
        self.by_grid = position_axes(config) == 3
        self._merge: int = getattr(vision, "spatial_merge_size", 1)
        self._base: Any = self.empty().base_model if self.by_grid else None
        found = {modality: media_token(config, modality) for modality in modalities}
        self.placeholders: dict[Modality, int] = {modality: token for modality, token in found.items() if token is not None}
        self.media_ids = frozenset(self.placeholders.values())

    def forms(self, media: Sequence[Modality]) -> list[str]:
        """How each item of a request is to be prepared, where that depends on what else is in it."""
        return [""] * len(media)

    def template_for(self, media: Sequence[Modality]) -> str | None:  # noqa: ARG002
        """The chat template of a conversation with these items, where it is not the checkpoint's."""
        return None

    def tokens_of(self, modality: Modality, grid: Grid) -> int | None:  # noqa: ARG002
        """Tokens of an item with this grid of patches; None if the family's items cannot have it."""
        time, height, width = grid
        if not self.by_grid or min(grid) < 1 or height % self._merge or width % self._merge:
            return None
        return time * height * width // self._merge**2

    def tensor_shapes(self, num_tokens: int) -> dict[str, tuple[int, int]]:
        """The tensors that an item's message must bring, by name."""
        shape = (num_tokens, self.hidden_size)
        return {"embeds": shape, **{f"deepstack.{level}": shape for level in range(self.deepstack_levels)}}

    def fits(self, item: MediaItem) -> bool:
        """Whether a prompt can have the item: the model knows all tokens of its layout, and positions for them."""
        if item.layout is None:
            return True
        vocab_size: int = self.config.get_text_config().vocab_size
        if any(token >= vocab_size and token not in self.media_ids for token, _ in item.layout.runs):
            return False
        try:
            self.positions(list(item.layout.tokens()), spans_of(item, item.layout, 0, self.media_ids))
        except Exception:  # transformers raises whatever comes up where runs are not what the grid says, also StopIteration
            return False
        return True

    def positions(self, token_ids: Sequence[int], spans: Sequence[Span]) -> Positions:
        """Positions of an expanded prompt; ``spans`` in order."""
        if not (self.by_grid and spans):
            return Positions(torch.arange(len(token_ids)).unsqueeze(0), len(token_ids))
        kinds = torch.zeros(len(token_ids), dtype=torch.int)
        for span in spans:
            kinds[span.start : span.start + span.tokens] = _KINDS[span.item.modality]
        # Transformers takes tokens of one kind that touch for one item. What keeps them apart here is taken out again.
        touching = [
            span.start for before, span in pairwise(spans) if span.offset == 0 and before.start + before.tokens == span.start
        ]
        ids = torch.tensor(token_ids)
        kept = torch.ones(len(token_ids) + len(touching), dtype=torch.bool)
        kept[torch.tensor([start + number for number, start in enumerate(touching)], dtype=torch.long)] = False
        apart = torch.zeros(2, len(kept), dtype=torch.long)
        apart[:, kept] = torch.stack([ids, kinds.long()])
        found = self._rope_index(apart[:1], apart[1:].int(), [span.item for span in spans if span.offset == 0])
        at = found[:, kept] - (~kept).cumsum(0)[kept]
        return Positions(at, int(at.max()) + 1)

    def _rope_index(self, ids: Tensor, kinds: Tensor, items: Sequence[Any]) -> Tensor:
        """Transformers' positions ``(3, tokens)`` of ``ids`` and ``kinds``, each ``(1, tokens)``."""
        grids = {
            f"{kind}_grid_thw": torch.tensor([item.grid_thw for item in items if item.modality == kind])
            for kind in ("image", "video")
            if any(item.modality == kind for item in items)
        }
        seconds = [item.seconds_per_grid for item in items if item.modality == "video"]
        if any(value is not None for value in seconds):
            grids["second_per_grid_ts"] = torch.tensor([1.0 if value is None else value for value in seconds])
        found: Tensor = self._base.get_rope_index(ids, mm_token_type_ids=kinds, **grids)[0]
        return found[:, 0]

    def load(self, folder: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
        """The weights of this half: a model with ``get_decoder()`` and ``lm_head``.

        Raises:
            ValueError: the checkpoint lacks weights of this half.
            OSError: they cannot be read.
        """
        return load_half(folder, "language", device, dtype, self.config, self.own_class)

    def sketch(self, dtype: torch.dtype, tensors: Mapping[str, Stored]) -> Sketch:
        """What ``load`` would load of a checkpoint with these ``tensors``.

        Raises:
            ValueError: as ``load``.
        """
        return sketch_half(self.config, "language", dtype, tensors, self.own_class)

    def empty(self) -> PreTrainedModel:
        """The model without weights, on the meta device."""
        return empty_half(self.config, "language", self.own_class)

    def embedded(self, token_ids: Tensor) -> Tensor:
        """``(tokens,)`` int64: the tokens whose embeddings are looked up for these. What items have is put over it."""
        return token_ids

    def token_inputs(self, token_ids: Sequence[int], prompt: bool) -> dict[str, Tensor]:  # noqa: ARG002
        """What the decoder takes besides embeddings and positions, ``(tokens,)`` each, for tokens of a ``prompt`` or answer."""
        return {}


def position_axes(config: Any) -> int:
    """3 for families with multimodal rotary positions (Qwen2-VL and later), else 1."""
    rope: dict[str, Any] = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return 3 if "mrope_section" in rope else 1
