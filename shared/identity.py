"""One identity for each media item: the content hash, the pad ids, and ``MediaItem.set_hash`` that writes both."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from shared.blocksums import BLOCK, BlockSums
from shared.errors import InternalError, InvalidRequest
from shared.layout import Layout
from shared.security import derive_key

Modality = Literal["image", "video", "audio"]
Grid = tuple[int, int, int]

SUMS = 16
PAD_IDS = 4
_PAD_OFFSET = 1 << 62
_SUPPLIED = re.compile(r"[0-9A-Za-z._:/+=-]{1,128}")


class ContentHasher:
    """Keyed 128-bit hash of tensors, computed on the device where they live. May be used from many threads.

    The bytes of a tensor are cut into blocks of 4096 signed integers, and each block is multiplied by a secret 4096x16 matrix
    of uniform int8 values (``shared/blocksums.py``). Only the sums (1/64 of the data) leave the device; BLAKE2b-128, keyed,
    covers them after a head with the name, dtype, shape and byte length of every tensor.

    Two different blocks agree in one sum only if ``sum(d[i] * m[i]) = 0`` for their difference ``d != 0``: with all entries but
    one fixed, at most one of the 256 values of the last entry satisfies that, so a sum agrees with probability at most
    2**-8, and all sixteen, whose columns are independent, with at most 2**-128. ``docs/identity.md`` has the rest.

    ``sums`` and ``digest_bytes`` are there for tests of that bound, at a width where it can be observed.
    """

    def __init__(self, secret: bytes, sums: int = SUMS, digest_bytes: int = 16) -> None:
        raw = derive_key(secret, "content-hash/matrix", BLOCK * SUMS)
        matrix = torch.frombuffer(bytearray(raw), dtype=torch.int8).view(BLOCK, SUMS)
        self._sums = BlockSums(matrix[:, :sums].contiguous())
        self._key = derive_key(secret, "content-hash/blake2b")
        self._supplied_key = derive_key(secret, "content-hash/supplied")
        self._digest_bytes = digest_bytes

    def hash(self, tensors: Mapping[str, Tensor]) -> str:
        """32 hex digits for named tensors of any dtype, shape, stride and device; the order of names does not matter.

        Raises:
            InternalError: there is nothing to hash, or a tensor has no plain bytes.
        """
        if not tensors:
            raise InternalError("A media item has no features to hash.")
        return self._digest(b"features", tensors)

    def hash_bytes(self, data: bytes, purpose: str) -> str:
        """32 hex digits for raw bytes, such as a picture as it came; other purposes give other values, and so do tensors."""
        raw = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return self._digest(b"bytes", {purpose: raw})

    def _digest(self, kind: bytes, tensors: Mapping[str, Tensor]) -> str:
        named = sorted(tensors.items())
        sums = [self._sums.of(tensor) for _, tensor in named]
        head = json.dumps([(name, str(t.dtype), list(t.shape), t.numel() * t.element_size()) for name, t in named]).encode()
        digest = hashlib.blake2b(digest_size=self._digest_bytes, key=self._key, person=kind)
        # The head says how many sums of which tensor follow, so that no two different items are spelled alike.
        digest.update(len(head).to_bytes(8, "little") + head)
        for some in sums:
            digest.update(some.cpu().numpy().data)
        return digest.hexdigest()

    def supplied(self, value: str, tenant: str) -> str:
        """The identity that stands for a hash which a caller supplied: ``tenant:`` and 32 hex digits.

        The prefix keeps it apart from all computed ones; the keyed digest keeps tenants apart from each other.

        Raises:
            InvalidRequest: not 1 to 128 letters, digits, or ``. _ : / + = -``.
        """
        if _SUPPLIED.fullmatch(value) is None:
            raise InvalidRequest(
                "A supplied hash has 1 to 128 letters, digits or . _ : / + = -, such as a UUID or hex digits.",
                param="mm_hashes",
            )
        named = len(tenant.encode()).to_bytes(8, "little") + tenant.encode() + value.encode()
        return f"tenant:{hashlib.blake2b(named, digest_size=16, key=self._supplied_key).hexdigest()}"


def pad_ids_of(content_hash: str) -> tuple[int, ...]:
    """Four token ids of 62 bits each, all at or above 2**62 and so outside every vocabulary."""
    raw = hashlib.blake2b(content_hash.encode(), digest_size=8 * PAD_IDS, person=b"epd-pad-ids").digest()
    words = (int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(PAD_IDS))
    return tuple(_PAD_OFFSET | (word & (_PAD_OFFSET - 1)) for word in words)


@dataclass
class MediaItem:
    """One picture, video or sound on its way: features on the encoder's side, embeddings on the language side.

    ``features`` are the processor's named tensors. ``embeds`` is ``(num_tokens, hidden)``; ``deepstack`` holds one tensor of
    that shape for each level. ``grid_thw`` counts patches in time, height and width, where the family has such a grid, and
    ``seconds_per_grid`` is what one step of a video's takes. ``layout`` is what stands for it in the prompt; without one it is
    the placeholder, ``num_tokens`` times. ``timings`` are in seconds by stage, as ``encoder_id`` spent them.
    """

    modality: Modality
    num_tokens: int
    grid_thw: Grid | None = None
    layout: Layout | None = None
    seconds_per_grid: float | None = None
    features: dict[str, Tensor] = field(default_factory=dict)
    embeds: Tensor | None = None
    deepstack: tuple[Tensor, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)
    encoder_id: str | None = None
    _content_hash: str | None = field(default=None, init=False)
    _pad_ids: tuple[int, ...] = field(default=(), init=False)

    def set_hash(self, value: str) -> None:
        """Writes the content hash and the pad ids together; nothing else writes either."""
        self._content_hash = value
        self._pad_ids = pad_ids_of(value)

    def again(self) -> MediaItem:
        """The same embeddings under the same hash, for another request, with timings of its own and no features."""
        item = MediaItem(self.modality, self.num_tokens, self.grid_thw, self.layout, self.seconds_per_grid)
        item.embeds, item.deepstack = self.embeds, self.deepstack
        item.set_hash(self.content_hash)
        return item

    @property
    def identifying(self) -> dict[str, Tensor]:
        """What its content hash covers: its features, and what it is in a prompt, where features do not tell. Two videos of the
        same frames may have other time stamps."""
        if self.layout is None:
            return self.features
        edges = f"{self.layout.before}\0{self.layout.after}\0{self.seconds_per_grid}".encode()
        told = {"layout": torch.tensor(self.layout.runs), "edges": torch.frombuffer(bytearray(edges), dtype=torch.uint8)}
        return self.features | told

    @property
    def prompt_tokens(self) -> int:
        """What it takes in the prompt."""
        return self.num_tokens if self.layout is None else self.layout.length

    @property
    def embedding_bytes(self) -> int:
        """What the embeddings take."""
        return sum(tensor.nbytes for tensor in (self.embeds, *self.deepstack) if tensor is not None)

    @property
    def kept_bytes(self) -> int:
        """What it takes where it is kept: embeddings, and a layout, which may have thousands of runs."""
        return self.embedding_bytes + (self.layout.nbytes if self.layout else 0)

    @property
    def content_hash(self) -> str:
        """The identity that every cache and every choice keys on.

        Raises:
            InternalError: ``set_hash`` was not called yet.
        """
        if self._content_hash is None:
            raise InternalError("A media item was used before its content hash was set.")
        return self._content_hash

    @property
    def pad_ids(self) -> tuple[int, ...]:
        """The ids that stand for the item's tokens where a token-id key is needed, cyclically."""
        return self._pad_ids
