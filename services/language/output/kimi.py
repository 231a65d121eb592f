"""Calls in a section of their own, each with its id: Kimi K2's way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from services.language.output.arguments import arguments_rule
from services.language.output.calls import MOST_NAME, NAME, CallReader, MarkedCalls
from services.language.output.feed import Reading
from services.language.output.format import Tool
from services.language.output.hermes import begun
from services.language.output.marks import literal, mark_of, tokens_of

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


class Kimi:
    """A section of calls, each ``functions.NAME:NUMBER`` and its arguments as JSON, with marks before, between and after."""

    name = "kimi"
    trigger = SECTION

    def __init__(self, tokenizer: Any) -> None:
        marks = [mark_of(tokenizer, text) for text in (SECTION, BEGIN, ARGUMENTS, END, SECTION_END)]
        self.opening, *self._marks = marks
        self.kept = tokens_of(marks)

    def rule(self, tools: Sequence[Tool], parallel: bool, opened: bool = False) -> str:
        begin, arguments, end, section_end = (mark.lark for mark in self._marks)
        section = "" if opened else f"{self.opening.lark} "
        numbers = range(len(tools))
        lines = [
            f"{section}call_one{'+' if parallel else ''} {section_end}",
            f"call_one: {begin} ({' | '.join(f'call_{number}' for number in numbers)}) {end}",
        ]
        for number, tool in enumerate(tools):
            call_id = f"{literal(f'functions.{tool.name}:')} /[0-9]{{1,4}}/"
            lines.append(f"call_{number}: {call_id} {arguments} call_arguments_{number}")
            lines.append(f"call_arguments_{number}: {arguments_rule(tool)}")
        return "\n".join(lines)

    def reader(self, tools: Sequence[Tool] = ()) -> CallReader:  # noqa: ARG002
        return _KimiCalls(SECTION)


class _KimiCalls(MarkedCalls):
    def _calls(self) -> Reading[None]:
        feed = self._feed
        yield from feed.space()
        yield from feed.expect(BEGIN)
        more = True
        while more:
            yield from feed.space()
            call_id = yield from feed.matching(NAME, MOST_NAME)
            named = _ID.fullmatch(call_id)
            name = named[1] if named else call_id
            yield from feed.space()
            yield from feed.expect(ARGUMENTS)
            yield from feed.space()
            yield from begun(feed, lambda name=name, call_id=call_id: self._begin(name, call_id))  # type: ignore[misc]
            yield from feed.space()
            yield from feed.expect(END)
            feed.keep()
            yield from feed.space()
            more = yield from feed.starts(BEGIN)
        yield from feed.expect(SECTION_END)
