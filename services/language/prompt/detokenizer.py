"""Tokens to text as they come: no character is ever split, and no part of a stop string is ever shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Incremental decoding of one answer.

    A tokenizer may need earlier tokens to decode a later one (spaces, bytes of one character), so the last few tokens are
    decoded together with the new one, and only what is new in the result is given out.
    """

    def __init__(self, tokenizer: Any) -> None:
        # The library beneath transformers' wrapper, which takes ten times as long for a few tokens.
        self._decode_ids = tokenizer.backend_tokenizer.decode if tokenizer.is_fast else tokenizer.decode
        self._tokens: list[int] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        """The text that one more token makes certain; empty while a character is incomplete."""
        self._tokens.append(token_id)
        text = self._decode()
        if text.endswith(_REPLACEMENT) and len(self._tokens) < 16:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """What is left at the end, incomplete characters included."""
        return self._advance(self._decode())

    def _decode(self) -> str:
        text: str = self._decode_ids(self._tokens, skip_special_tokens=True)
        return text

    def _advance(self, text: str) -> str:
        fresh = text[len(self._shown) :]
        # Keep a few tokens of context for the next ones.
        self._tokens = self._tokens[-4:]
        self._shown = self._decode()
        return fresh


class StopStrings:
    """Finds the first stop string in a stream of text, and holds back what could still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown, and whether a stop string was met; it and all after it are dropped."""
        self._held += text
        if not self._stops:
            return self.flush(), False
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` that is a beginning of ``stop``."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
