"""Paged attention equals attention written out for each sequence by itself, in every shape that families need."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from services.language.engine.torch.attention import KVPool, LayerShape, PromptPart, Step, paged_attention

BLOCK = 4


@dataclass
class One:
    """A sequence of ``past`` tokens in the pool and ``fresh`` ones in the step. The tokens ``item[0]..item[1]`` of it look at
    each other in both directions."""

    past: int
    fresh: int
    blocks: list[int]
    item: tuple[int, int] = (0, 0)

    def reach(self) -> Tensor | None:
        first, last = self.item
        places = range(self.past, self.past + self.fresh)
        return torch.tensor([last - 1 if first <= place < last else place for place in places]) if last else None


def naive(
    query: Tensor, keys: Tensor, values: Tensor, scaling: float, window: int, softcap: float | None, item: tuple[int, int]
) -> Tensor:
    """``(fresh, heads, dim)`` from the fresh queries, and keys of the whole sequence ``(length, key_heads, dim)``."""
    heads, length, fresh = query.shape[1], keys.shape[0], query.shape[0]
    out = query.new_empty(fresh, heads, values.shape[-1])
    for row in range(fresh):
        place = length - fresh + row
        last = item[1] - 1 if item[0] <= place < item[1] else place
        first = max(0, place - window + 1) if window else 0
        for head in range(heads):
            shared = head * keys.shape[1] // heads
            scores = keys[first : last + 1, shared] @ query[row, head] * scaling
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            out[row, head] = torch.softmax(scores, 0) @ values[first : last + 1, shared]
    return out


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [0, 1, 5, 100])
@pytest.mark.parametrize(
    ("heads", "key_heads", "key_dim", "value_dim"),
    # Of the last two, many heads look at one; of the very last, its values are its keys.
    [(4, 4, 8, 8), (4, 2, 8, 8), (6, 1, 8, 8), (4, 4, 12, 8), (18, 1, 8, 8), (18, 1, 8, 0)],
)
def test_every_shape(heads: int, key_heads: int, key_dim: int, value_dim: int, window: int, softcap: float | None) -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    free = rng.sample(range(80), 80)
    # Decoding sequences first; then whole prompts, and chunks after a past that ends within a block and at its end; then chunks
    # that go through an item, or end or begin with one, of which the last has begun before.
    kinds = [(0, 1), (6, 1), (15, 1), (0, 9), (5, 7), (8, 4), (3, 30)]
    through = [(0, 12, (3, 9)), (6, 14, (8, 20)), (10, 5, (4, 13))]
    plans = [(past, fresh, (0, 0)) for past, fresh in kinds] + through
    ones = [One(past, fresh, [free.pop() for _ in range(-(-(past + fresh) // BLOCK))], item) for past, fresh, item in plans]
    alike = value_dim == 0
    shape = LayerShape(key_heads, key_dim, 0 if alike else key_heads, value_dim or key_dim)
    pool = KVPool({0: shape}, 80, BLOCK, torch.float32, torch.device("cpu"))
    for tensor in (pool.keys[0], pool.values[0]):
        tensor.copy_(torch.randn_like(tensor) * 9)  # what others left behind must not be seen
    tokens = sum(one.fresh for one in ones)
    query = torch.randn(1, heads, tokens, key_dim)
    key = torch.randn(1, key_heads, tokens, key_dim)
    value = key if alike else torch.randn(1, key_heads, tokens, value_dim)
    expected, slots, parts, at = [], [], [], 0
    for one in ones:
        places = [one.blocks[place // BLOCK] * BLOCK + place % BLOCK for place in range(one.past + one.fresh)]
        slots += places[one.past :]
        flat_keys, flat_values = pool.keys[0].flatten(0, 1), pool.values[0].flatten(0, 1)
        inside = slice(at, at + one.fresh)
        keys = torch.cat([flat_keys[places[: one.past]], key[0, :, inside].transpose(0, 1)])
        values = torch.cat([flat_values[places[: one.past]], value[0, :, inside].transpose(0, 1)])
        expected.append(naive(query[0, :, inside].transpose(0, 1), keys, values, 0.3, window, softcap, one.item))
        if one.fresh > 1:
            parts.append(PromptPart(at, at + one.fresh, one.past + one.fresh, torch.tensor(one.blocks), one.reach()))
        at += one.fresh
    decoding = [one for one in ones if one.fresh == 1]
    width = max(len(one.blocks) for one in decoding)
    tables = torch.tensor([(one.blocks + [0] * width)[:width] for one in decoding])
    step = Step(pool, torch.tensor(slots), tables, torch.tensor([one.past + 1 for one in decoding]), parts)
    module = nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    found, _ = paged_attention(
        module, query, key, value, None, scaling=0.3, step=step, sliding_window=window or None, softcap=softcap
    )
    torch.testing.assert_close(found[0], torch.cat(expected), atol=2e-4, rtol=1e-4)
    assert torch.equal(pool.keys[0].flatten(0, 1)[slots], key[0].transpose(0, 1))


def test_attention_sinks_are_refused_by_name() -> None:
    pool = KVPool({0: LayerShape(1, 4, 1, 4)}, 2, BLOCK, torch.float32, torch.device("cpu"))
    none = torch.zeros(0, dtype=torch.long)
    step = Step(pool, none, none.view(0, 0), none, [])
    tensor = torch.zeros(1, 1, 1, 4)
    with pytest.raises(NotImplementedError, match="sinks"):
        paged_attention(nn.Module(), tensor, tensor, tensor, None, scaling=1.0, step=step, s_aux=torch.zeros(1))
