"""Tokens to text as they come: no character is ever split, and no part of a stop string is ever shown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from services.language.output.feed import overlap

_REPLACEMENT = "\ufffd"
_MOST_UNCLEAR = 12
"""Tokens that are waited for, where they are no whole character."""


class Detokenizer:
    """Incremental decoding of one answer.

    A tokenizer may need earlier tokens to decode a later one (spaces, bytes of one character), so those that gave the last text
    are decoded together with the new one, and only what is new in the result is given out. Special tokens have no text, but for
    those that are ``kept``.
    """

    def __init__(self, tokenizer: Any, kept: Collection[int] = ()) -> None:
        self._kept = kept
        # The library beneath transformers' wrapper, which takes ten times as long for a few tokens.
        self._decode_ids = tokenizer.backend_tokenizer.decode if tokenizer.is_fast else tokenizer.decode
        self._tokens: list[int] = []
        self._before = 0
        self._shown = ""

    def push(self, token_id: int) -> str:
        """The text that one more token makes certain; empty while a character is incomplete."""
        if self._kept and self._hidden(token_id):
            return ""
        self._tokens.append(token_id)
        text = self._decode()
        unclear = text.endswith(_REPLACEMENT) or len(text) <= len(self._shown)
        if unclear and len(self._tokens) - self._before < _MOST_UNCLEAR:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """What is left at the end, incomplete characters included."""
        return self._advance(self._decode())

    def _decode(self) -> str:
        text: str = self._decode_ids(self._tokens, skip_special_tokens=not self._kept)
        return text

    def _hidden(self, token_id: int) -> bool:
        """Whether the token is special and not kept: it has text, but not where special tokens are left out."""
        if token_id in self._kept or self._decode_ids([token_id], skip_special_tokens=True):
            return False
        return bool(self._decode_ids([token_id], skip_special_tokens=False))

    def _advance(self, text: str) -> str:
        fresh = text[len(self._shown) :]
        # The context begins where a character does: of one that is cut, some decoders spoil all bytes that follow.
        self._tokens = self._tokens[self._before :]
        self._before = len(self._tokens)
        self._shown = self._decode()
        return fresh


class StopStrings:
    """Finds the first stop string in a stream of text, and holds back what could still become one. It is ``shown``, or not."""

    def __init__(self, stops: Sequence[str], shown: bool = False) -> None:
        self._stops = tuple(stops)
        self._shown = shown
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown, and whether a stop string was met; all after it is dropped."""
        self._held += text
        if not self._stops:
            return self.flush(), False
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            shown, self._held = self._held[: at + len(stop) if self._shown else at], ""
            return shown, True
        keep = max(overlap(self._held, stop) for stop in self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        shown, self._held = self._held, ""
        return shown
