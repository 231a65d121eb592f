"""Verification: a message becomes a media item only if everything about it is as this model needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shared.errors import ERRORS, EmbeddingIncompatible, EncoderFailed, InternalError
from shared.identity import Grid, MediaItem, Modality
from shared.wire import Buffer, Header, read_tensors


class ModelFacts(Protocol):
    """What verification needs to know of the language half."""

    placeholders: dict[Modality, int]
    media_ids: frozenset[int]
    by_grid: bool

    def tokens_of(self, modality: Modality, grid: Grid) -> int | None:
        """Tokens of an item with this grid; None if the family's items cannot have it."""

    def tensor_shapes(self, num_tokens: int) -> dict[str, tuple[int, int]]:
        """The tensors that a message must bring."""

    def fits(self, item: MediaItem) -> bool:
        """Whether a prompt can have an item with this layout."""


class Assembler:
    """Turns what was received, frames or parts of memory, into media items for one model."""

    def __init__(self, facts: ModelFacts, dtype: torch.dtype, fingerprint: str, max_item_tokens: int = 16_384) -> None:
        self._facts = facts
        self._dtype = dtype
        self._fingerprint = fingerprint
        self._max_item_tokens = max_item_tokens

    def assemble(self, header: Header, parts: Sequence[Buffer | Tensor]) -> MediaItem:
        """A verified item, its hash set, its embeddings in the model's dtype (without a copy where they had it already).

        Raises:
            EmbeddingCorrupt: framing or digest is wrong.
            EmbeddingIncompatible: fingerprint, shape, token count or dtype is wrong, or values are not finite.
            EpdError: the message reports a failure of the encoder's.
        """
        if header.failure is not None:
            read_tensors(header, parts)  # whose failure it is can be corrupted like all else
            kind = ERRORS.get(header.failure.code, EncoderFailed)
            # What is a bug over there is not one of ours.
            raise (EncoderFailed if kind is InternalError else kind)(header.failure.message)
        if header.model_fingerprint != self._fingerprint:
            raise EmbeddingIncompatible(
                f"The embeddings come from another model (fingerprint {header.model_fingerprint}, not {self._fingerprint})."
            )
        item = MediaItem(header.modality, header.num_tokens, header.grid_thw, header.layout, header.seconds_per_grid)
        self._check_geometry(header)
        if not self._facts.fits(item):
            raise EmbeddingIncompatible(f"Item {header.item} has a layout that is none of this model's.")
        received = read_tensors(header, parts).tensors
        wanted = self._facts.tensor_shapes(header.num_tokens)
        came = {name: tuple(tensor.shape) for name, tensor in received.items()}
        if came != wanted:
            raise EmbeddingIncompatible(f"Item {header.item} brings tensors {came}; this model needs {wanted}.")
        tensors = {name: received[name].to(self._dtype) for name in wanted}
        for name, tensor in tensors.items():
            # After the conversion, which may overflow.
            if not _is_finite(tensor):
                raise EmbeddingIncompatible(f"Tensor {name} of item {header.item} has values that are not finite.")
        item.embeds = tensors.pop("embeds")
        item.deepstack = tuple(tensors.values())
        item.timings, item.encoder_id = dict(header.timings), header.encoder_id
        item.set_hash(header.content_hash)
        return item

    def _check_geometry(self, header: Header) -> None:
        """Modality, token count, grid and layout agree with each other and with the family.

        Raises:
            EmbeddingIncompatible: they do not.
        """
        if header.modality not in self._facts.placeholders:
            raise EmbeddingIncompatible(f"Item {header.item} is of kind {header.modality}, which this model does not take.")
        tokens, grid, layout = header.num_tokens, header.grid_thw, header.layout
        if (most := max(tokens, layout.length if layout else 0)) > self._max_item_tokens:
            raise EmbeddingIncompatible(f"Item {header.item} has {most} tokens; at most {self._max_item_tokens} are accepted.")
        # At least one of both must say how many there are, and sounds have no grid.
        by_grid = self._facts.by_grid and header.modality != "audio"
        counted: list[int | None] = [layout.count(self._facts.media_ids)] if layout else []
        if by_grid:
            counted.append(self._facts.tokens_of(header.modality, grid) if grid else None)
        if tokens < 1 or set(counted) != {tokens}:
            there = f"{tokens} tokens and the grid {grid}" + (f" and a layout with {counted[0]}" if layout else "")
            raise EmbeddingIncompatible(f"Item {header.item} has {there}, which do not fit.")


def _is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite. One that is not makes their sum so: that is one pass, some forty times as fast as testing
    each. Finite values may have a sum that is not, so then each is looked at."""
    return bool(torch.isfinite(tensor.sum(dtype=torch.float32))) or bool(torch.isfinite(tensor).all())
