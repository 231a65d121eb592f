"""The marks that structure an answer: as text, as tokens, and in a grammar."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark's ``text``, and the special ``token`` that stands for it, if one does. Such a token is no text: grammars name it,
    and decoding leaves it out unless told otherwise."""

    text: str
    token: int | None = None

    @property
    def lark(self) -> str:
        """The mark in a rule of a llguidance grammar."""
        return literal(self.text) if self.token is None else f"<[{self.token}]>"


def mark_of(tokenizer: Any, text: str) -> Mark:
    """``text`` as ``tokenizer`` has it."""
    token = tokenizer.get_added_vocab().get(text)
    special = token is not None and tokenizer.added_tokens_decoder[token].special
    return Mark(text, token if special else None)


def tokens_of(marks: Collection[Mark]) -> frozenset[int]:
    """The special tokens among ``marks``."""
    return frozenset(mark.token for mark in marks if mark.token is not None)


def literal(text: str) -> str:
    """``text`` as a terminal of a llguidance grammar."""
    return json.dumps(text, ensure_ascii=False)
