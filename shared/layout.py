"""What one media item is in a prompt: which tokens, how often, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from pydantic import Field

MAX_RUNS = 16_384
"""Runs of one item; a long video with a time stamp before each picture has some thousands."""

_RUN_BYTES = 128

Run = tuple[Annotated[int, Field(ge=0, lt=2**31)], Annotated[int, Field(gt=0, lt=2**31)]]
"""A token id, and how often it comes in a row."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The tokens that one placeholder gives way to: ``runs`` of equal ids, in order. Embeddings of the item stand for those of
    them that are media tokens of its family; the others (row ends, time stamps, marks) are ordinary tokens.

    ``before`` and ``after`` are plain text at the edges. What tokens it becomes depends on the prompt's text next to it.
    """

    runs: Annotated[tuple[Run, ...], Field(min_length=1, max_length=MAX_RUNS)]
    before: Annotated[str, Field(max_length=256)] = ""
    after: Annotated[str, Field(max_length=256)] = ""

    @classmethod
    def of(cls, token_ids: Iterable[int], before: str = "", after: str = "") -> Layout:
        """The layout that spells ``token_ids``."""
        return cls(tuple((token, len(list(same))) for token, same in groupby(token_ids)), before, after)

    @property
    def length(self) -> int:
        """Tokens in all, without the text at the edges."""
        return sum(count for _, count in self.runs)

    @property
    def nbytes(self) -> int:
        """What it takes in memory, about."""
        return _RUN_BYTES * len(self.runs)

    def count(self, token_ids: frozenset[int]) -> int:
        """How many of its tokens are among ``token_ids``."""
        return sum(count for token, count in self.runs if token in token_ids)

    def tokens(self) -> Iterator[int]:
        """Its tokens, one by one."""
        for token, count in self.runs:
            yield from (token for _ in range(count))
