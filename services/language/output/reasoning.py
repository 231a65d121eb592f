"""Reasoning that a model writes before its answer, and the marks around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.language.output.marks import mark_of, tokens_of

_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷"))


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around a model's reasoning. ``kept`` are those that are special tokens, which decoding must not leave out."""

    begin: str = "<think>"
    end: str = "</think>"
    kept: frozenset[int] = frozenset()

    def open_in(self, tail: str, continued: str = "") -> bool:
        """Whether a prompt that ends with ``tail`` leaves reasoning to go on: it ends with the mark of its beginning, or with
        ``continued``, the last message's text, in which reasoning does not end."""
        return tail.rstrip().endswith(self.begin) or self.begin in continued.rpartition(self.end)[2]


def thinking_of(tokenizer: Any, template: str) -> Thinking | None:
    """The marks that ``template`` has reasoning between; None where it knows of none."""
    for begin, end in _MARKS:
        if begin in template or end in template:
            return Thinking(begin, end, tokens_of([mark_of(tokenizer, begin), mark_of(tokenizer, end)]))
    return None
