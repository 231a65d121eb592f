"""What the answers to one request have to look like, and how they are read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from services.language.output.dialects import Dialect, dialect_of
from services.language.output.format import AnswerFormat, Tool, ToolChoice
from services.language.output.grammar import Grammars, grammar_of
from services.language.output.reader import MessageReader
from services.language.output.reasoning import Thinking, thinking_of

TAIL = 32
"""Tokens of a prompt's end among which its template opens the reasoning, if it does."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``grammar`` is what the whole answer must match, None where anything goes. ``thinking`` and ``dialect`` are there where
    the answer may have reasoning, which the prompt leaves ``open``, and calls."""

    grammar: str | None = None
    thinking: Thinking | None = None
    open: bool = False
    dialect: Dialect | None = None
    tools: tuple[Tool, ...] = ()

    @property
    def kept(self) -> frozenset[int]:
        """Special tokens that are marks of reasoning or calls, and so needed in the text."""
        marked = [part.kept for part in (self.thinking, self.dialect) if part is not None]
        return frozenset().union(*marked)

    def reader(self) -> MessageReader | None:
        """Reads one answer; None where all of it is content."""
        if self.thinking is None and self.dialect is None:
            return None
        return MessageReader(self.thinking, self.open, None if self.dialect is None else self.dialect.reader(self.tools))


class Shapes:
    """Makes shapes for one checkpoint, as its tokenizer and its chat template spell reasoning and calls."""

    def __init__(self, tokenizer: Any, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        template: str = tokenizer.chat_template
        self._thinking = thinking_of(tokenizer, template)
        self._dialect = dialect_of(tokenizer, template)
        self._grammars = Grammars(tokenizer, eos_ids)

    def of_message(
        self,
        answer_format: AnswerFormat | None,
        tools: Sequence[Tool],
        choice: ToolChoice,
        prompt: Sequence[int],
        continued: str = "",
    ) -> Shape:
        """The shape of what an assistant says after ``prompt``, which may be the rest of a message that begins with what is
        ``continued``. Compiles grammars, so not for the event loop.

        Raises:
            InvalidRequest: the format, or a tool's parameters, cannot be made a grammar of.
        """
        dialect = self._dialect if tools and choice.mode != "none" else None
        thinking = self._thinking
        opened = thinking is not None and thinking.open_in(self._tokenizer.decode(prompt[-TAIL:]), continued)
        grammar = grammar_of(answer_format, tools, choice, dialect, thinking, opened)
        return Shape(self._checked(grammar, answer_format), thinking, opened, dialect, tuple(tools))

    def of_text(self, answer_format: AnswerFormat | None) -> Shape:
        """The shape of a text that goes on from a prompt.

        Raises:
            InvalidRequest: the format cannot be made a grammar of.
        """
        grammar = grammar_of(answer_format, (), ToolChoice("none"), None, None, False)
        return Shape(self._checked(grammar, answer_format))

    def _checked(self, grammar: str | None, answer_format: AnswerFormat | None) -> str | None:
        if grammar is not None:
            self._grammars.check(grammar, "tools" if answer_format is None else answer_format.param)
        return grammar
