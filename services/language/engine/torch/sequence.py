"""One sequence on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from services.language.engine.interface import EngineRequest, Sampling
from services.language.engine.torch.blocks import chain_keys
from services.language.engine.torch.guide import Guide
from shared.identity import MediaItem


@dataclass(eq=False)
class Sequence:
    """Tokens, where their keys and values lie, and how far they are computed.

    ``tokens`` is the prompt and the answer so far; ``keys_ids`` is the same with pad ids in place of placeholders. The first
    ``computed`` tokens have their keys and values in ``blocks``. ``guide`` follows the answer's tokens, where there is a
    grammar. ``arrived`` and ``begun`` are on the monotonic clock; the latter is when its first tokens were computed.
    """

    number: int
    request: EngineRequest
    tokens: list[int]
    key_ids: list[int]
    generator: torch.Generator
    blocks: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    computed: int = 0
    cached_tokens: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    preempted: bool = False
    guide: Guide | None = None
    arrived: float = 0.0
    begun: float | None = None

    @classmethod
    def of(cls, number: int, request: EngineRequest, arrived: float = 0.0) -> Sequence:
        """A sequence that nothing is computed of yet."""
        tokens = list(request.prompt.token_ids)
        key_ids = list(tokens)
        for span in request.prompt.spans:
            pads = span.item.pad_ids
            for at in range(span.tokens):
                key_ids[span.start + at] = pads[(span.offset + at) % len(pads)]
        generator = torch.Generator()
        if request.sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(request.sampling.seed & 0xFFFF_FFFF_FFFF_FFFF)
        return cls(number, request, tokens, key_ids, generator, arrived=arrived)

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt.token_ids)

    @property
    def produced(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 while decoding."""
        return len(self.tokens) - self.computed

    def append(self, token: int) -> None:
        """One more token of the answer."""
        self.tokens.append(token)
        self.key_ids.append(token)
        self.counts[token] = self.counts.get(token, 0) + 1
        if self.guide is not None:
            self.guide.take(token)

    def extend_keys(self, block_size: int) -> list[bytes]:
        """Keys of all full blocks of the tokens so far; those known already are not computed again."""
        done = len(self.block_keys) * block_size
        if len(self.key_ids) - done < block_size:
            return self.block_keys
        parent = self.block_keys[-1] if self.block_keys else b""
        self.block_keys.extend(chain_keys(self.key_ids[done:], block_size, parent))
        return self.block_keys

    def item_across(self, place: int) -> tuple[int, int] | None:
        """First and last place of the tokens of one item that lie on both sides of ``place``, if there are such."""
        for span in self.request.prompt.spans:
            if span.start < place < span.start + span.tokens:
                return span.start, span.start + span.tokens
        return None

    def pictures_between(self, start: int, end: int) -> list[tuple[int, int, int, MediaItem]]:
        """Parts of pictures among the tokens ``start..end``: first and last place, offset within the item, and the item."""
        parts = []
        for span in self.request.prompt.spans:
            first, last = max(start, span.start), min(end, span.start + span.tokens)
            if first < last:
                parts.append((first, last, span.offset + first - span.start, span.item))
        return parts
