"""Bookkeeping of the key/value pool: which block belongs to whom, and which holds what. No tensors here."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence


class OutOfBlocksError(Exception):
    """The pool has no block left that nobody uses."""


class BlockPool:
    """Blocks with reference counts, of which those nobody uses are still found by their content until they are needed.

    A block is *used* (referenced by sequences), or *idle*. Idle blocks are given out again in this order: first those without
    content worth keeping, then the least recently used.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that could be given out now."""
        return len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold ``tokens`` tokens."""
        return -(-tokens // self.block_size)

    def take_cached(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks of the longest prefix of ``keys`` that is in the pool, each held once more from now on."""
        found: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            self._hold(block)
            found.append(block)
        return found

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with no content, held once.

        Raises:
            OutOfBlocksError: there are fewer; none is taken then.
        """
        if count > len(self._idle):
            raise OutOfBlocksError
        taken = []
        for _ in range(count):
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def publish(self, block: int, key: bytes) -> None:
        """Says what a full block holds, so that others can use it. Of two blocks with equal content the first one is found."""
        if key not in self._block_of:
            self._forget(block)
            self._key_of[block] = key
            self._block_of[key] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Gives up one hold on each block of a sequence. The end of a sequence is forgotten before its beginning."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._idle[block] = None
                if self._key_of[block] is None:
                    self._idle.move_to_end(block, last=False)

    def discard(self, blocks: Sequence[int]) -> list[int]:
        """Forgets what released blocks hold, because it turned out to be bad; returns those that nobody else holds."""
        alone = [block for block in blocks if self._references[block] == 0]
        for block in alone:
            self._forget(block)
            self._idle.move_to_end(block, last=False)
        return alone

    def _hold(self, block: int) -> None:
        if self._references[block] == 0:
            del self._idle[block]
        self._references[block] += 1

    def _forget(self, block: int) -> None:
        key = self._key_of[block]
        if key is not None:
            del self._block_of[key]
            self._key_of[block] = None


def chain_keys(ids: Sequence[int], block_size: int, parent: bytes = b"") -> Iterator[bytes]:
    """A key for each full block of ``ids``: it covers the block's ids and, through ``parent``, all before them.

    ``ids`` are token ids, with pad ids in place of placeholders, so equal keys mean equal text and equal pictures.
    """
    for start in range(0, len(ids) - block_size + 1, block_size):
        block = ids[start : start + block_size]
        raw = b"".join(token.to_bytes(8, "little") for token in block)
        parent = hashlib.blake2b(raw, digest_size=16, key=parent).digest()
        yield parent
