"""Attention over the paged pool, as transformers' modules call it.

The tokens of a step are packed into one row: first those that decode, one each, then the chunks of prompts. The pool's layout
is ``(blocks, block_size, heads, dim)`` for each layer, so a sequence's keys are the rows of its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend
from transformers import AttentionInterface

NAME = "epd_paged"

_COPIES = 8
"""Of one head's keys, at a time; latent attention has one head of keys as wide as all, for 64 and more of queries."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Tokens ``first..last`` of the row; ``blocks`` hold the sequence, of which ``length`` tokens exist after the step.

    ``reach`` ``(tokens,)`` int64 is the last place of the sequence that each may look at; without it, that is its own.
    """

    first: int
    last: int
    length: int
    blocks: Tensor
    reach: Tensor | None = None


@dataclass(slots=True)
class Step:
    """Where the tokens of one step go, and what each may look at.

    ``slots`` ``(tokens,)`` int64: place of each token in the flat pool. ``tables`` ``(decoding, blocks)`` int64 and ``lengths``
    ``(decoding,)`` int64 describe the first ``decoding`` tokens' sequences, padded by block 0.
    """

    pool: KVPool | Probe
    slots: Tensor
    tables: Tensor
    lengths: Tensor
    parts: list[PromptPart]
    _decode_masks: dict[int, Tensor] = field(default_factory=dict)
    _prompt_masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def decode_mask(self, block_size: int, window: int) -> Tensor:
        """``(decoding, 1, 1, places)``: True where a decoding token may look. Made once a step for each window (0 is none)."""
        if window not in self._decode_masks:
            places = torch.arange(self.tables.shape[1] * block_size, device=self.tables.device)
            mask = places < self.lengths[:, None]
            if window:
                mask &= places >= self.lengths[:, None] - window
            self._decode_masks[window] = mask[:, None, None]
        return self._decode_masks[window]

    def prompt_mask(self, part: PromptPart, window: int) -> Tensor:
        """``(part's tokens, part's length)``: True where they may look. Made once a step, however many layers ask."""
        key = part.first, window
        if key not in self._prompt_masks:
            row = torch.arange(part.length - (part.last - part.first), part.length, device=self.slots.device)
            reach = row if part.reach is None else part.reach
            place = torch.arange(part.length, device=self.slots.device)
            mask = place <= reach[:, None]
            if window:
                # The window bounds the past alone: what a token may see of those after it, it sees however far that is.
                mask &= place > row[:, None] - window
            self._prompt_masks[key] = mask
        return self._prompt_masks[key]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and dimensions of one layer's keys and values; they may differ. Where the values are the keys, as in latent
    attention, they have no heads of their own."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int

    @property
    def numbers(self) -> int:
        """Numbers that one token takes in this layer."""
        return self.key_heads * self.key_dim + self.value_heads * self.value_dim


class KVPool:
    """Keys and values of all layers, allocated once. Zeroed, so that what is masked out is finite."""

    def __init__(
        self, shapes: dict[int, LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks

        def allocate(heads: int, dim: int) -> Tensor:
            return torch.zeros(num_blocks, block_size, heads, dim, dtype=dtype, device=device)

        self.keys = {layer: allocate(shape.key_heads, shape.key_dim) for layer, shape in shapes.items()}
        self.values = {
            layer: allocate(shape.value_heads, shape.value_dim) if shape.value_heads else self.keys[layer]
            for layer, shape in shapes.items()
        }

    def scrub(self, blocks: list[int]) -> None:
        """Zeroes blocks whose content is bad, so that it never meets another sequence."""
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[blocks] = 0


@dataclass
class Probe:
    """Stands in for a pool while one token goes through the model, and notes what each layer would store."""

    shapes: dict[int, LayerShape] = field(default_factory=dict)


def register() -> None:
    """Makes ``NAME`` known to transformers, but no masks for it, so that it neither builds one nor looks for borders between
    sequences in the positions: what a token may look at follows from the step."""
    AttentionInterface.register(NAME, paged_attention)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    scaling: float,
    step: Step,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unknown: Any,
) -> tuple[Tensor, None]:
    """Stores the step's keys and values and attends; from ``(1, heads, tokens, dim)`` to ``(1, tokens, heads, dim)``.

    Where ``value`` is the very tensor ``key``, it is stored once.
    """
    if unknown.get("s_aux") is not None:
        raise NotImplementedError("attention sinks")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if isinstance(step.pool, Probe):
        value_heads = 0 if value is key else value.shape[1]
        step.pool.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value_heads, value.shape[3])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    keys, values = step.pool.keys[layer], step.pool.values[layer]
    keys.view(-1, *keys.shape[2:]).index_copy_(0, step.slots, key[0].transpose(0, 1))
    if values is not keys:
        values.view(-1, *values.shape[2:]).index_copy_(0, step.slots, value[0].transpose(0, 1))
    out = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
    window = sliding_window or 0
    decoding = step.tables.shape[0]
    if decoding:
        mask = step.decode_mask(step.pool.block_size, window)
        out[:decoding] = _decode(query[0, :, :decoding], keys, values, step.tables, mask, scaling, softcap)
    for part in step.parts:
        inside = slice(part.first, part.last)
        begins = part.length == part.last - part.first
        if begins:
            past_keys = key[0, :, inside]
            past_values = past_keys if values is keys else value[0, :, inside]
        else:
            past_keys = keys.index_select(0, part.blocks).flatten(0, 1)[: part.length].transpose(0, 1)
            past_values = past_keys
            if values is not keys:
                past_values = values.index_select(0, part.blocks).flatten(0, 1)[: part.length].transpose(0, 1)
        # A chunk that begins its sequence and fits into the window needs no mask but the order of its tokens.
        plain = begins and part.reach is None and softcap is None and (not window or part.length <= window)
        seen = None if plain else step.prompt_mask(part, window)
        out[inside] = _prefill(query[0, :, inside], past_keys, past_values, seen, scaling, softcap)
    return out.unsqueeze(0), None


def _decode(
    query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, mask: Tensor, scaling: float, softcap: float | None
) -> Tensor:
    """One token of each sequence: query ``(heads, n, dim)``, ``tables`` ``(n, blocks)``; returns ``(n, heads, dim)``.

    Query heads that share a key head are looked at as several queries of that head, so keys are not repeated.
    """
    n, key_heads = tables.shape[0], keys.shape[2]
    # index_select copies whole blocks; indexing by a table was measured to take three times as long.
    places, rows = tables.shape[1] * keys.shape[1], tables.flatten()
    k = keys.index_select(0, rows).view(n, places, *keys.shape[2:]).transpose(1, 2)
    v = k if values is keys else values.index_select(0, rows).view(n, places, *values.shape[2:]).transpose(1, 2)
    q = query.transpose(0, 1).reshape(n, key_heads, -1, query.shape[-1])
    out = attend(q, k, v, attn_mask=mask, scale=scaling) if softcap is None else _capped(q, k, v, mask, scaling, softcap)
    return out.reshape(n, query.shape[0], -1)


def _prefill(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, softcap: float | None) -> Tensor:
    """A chunk of one sequence: query ``(heads, n, dim)``, keys ``(key_heads, length, dim)``; returns ``(n, heads, dim)``.

    Without a ``mask`` the chunk is the whole sequence, and each token looks at those before it.
    """
    heads = query.shape[0]
    if keys.shape[0] == 1 and heads > _COPIES:
        # Keys are copied for each head, since not all of torch's kernels read a view of stride 0 rightly (its issue 191937).
        some = [_prefill(part, keys, values, mask, scaling, softcap) for part in torch.split(query, _COPIES)]
        return torch.cat(some, dim=1)
    k = keys.repeat_interleave(heads // keys.shape[0], 0).unsqueeze(0)
    v = k if values is keys else values.repeat_interleave(heads // values.shape[0], 0).unsqueeze(0)
    q = query.unsqueeze(0)
    if mask is None:
        out = attend(q, k, v, is_causal=True, scale=scaling)
    elif softcap is None:
        out = attend(q, k, v, attn_mask=mask, scale=scaling)
    else:
        out = _capped(q, k, v, mask, scaling, softcap)
    return out[0].transpose(0, 1)


def _capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, softcap: float) -> Tensor:
    """Attention whose scores are squeezed into ±``softcap`` by a hyperbolic tangent (Gemma 2)."""
    scores = torch.tanh(q @ k.transpose(-1, -2) * (scaling / softcap)) * softcap
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1, dtype=torch.float32).to(q.dtype) @ v
