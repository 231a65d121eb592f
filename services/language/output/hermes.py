"""Calls as JSON between ``<tool_call>`` and ``</tool_call>``: Hermes' way, which Qwen's models have, and ERNIE's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from services.language.output.arguments import arguments_rule
from services.language.output.calls import MOST_NAME, NAME, CallReader, MarkedCalls
from services.language.output.feed import Feed, Reading
from services.language.output.format import Tool
from services.language.output.marks import literal, mark_of, tokens_of

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes:
    """``<tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>``, once for each call."""

    name = "hermes"
    trigger = BEGIN

    def __init__(self, tokenizer: Any) -> None:
        self.opening, self._end = mark_of(tokenizer, BEGIN), mark_of(tokenizer, END)
        self.kept = tokens_of((self.opening, self._end))

    def rule(self, tools: Sequence[Tool], parallel: bool, opened: bool = False) -> str:
        more = f' ("\\n" {self.opening.lark} call_body)*' if parallel else ""
        begin = "" if opened else f"{self.opening.lark} "
        return f'{begin}call_body{more}\ncall_body: "\\n" call_object "\\n" {self._end.lark}\n{object_rules(tools)}'

    def reader(self, tools: Sequence[Tool] = ()) -> CallReader:  # noqa: ARG002
        return _HermesCalls(BEGIN)


class _HermesCalls(MarkedCalls):
    def _calls(self) -> Reading[None]:
        yield from call_object(self._feed, self._begin)
        yield from self._feed.space()
        yield from self._feed.expect(END)


def object_rules(tools: Sequence[Tool]) -> str:
    """Rules by which ``call_object`` is a call of one of ``tools`` as an object with ``name`` and ``arguments``."""
    lines = ["call_object: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
    for number, tool in enumerate(tools):
        head = literal(f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": ')
        lines.append(f'call_{number}: {head} call_arguments_{number} "}}"')
        lines.append(f"call_arguments_{number}: {arguments_rule(tool)}")
    return "\n".join(lines)


def call_object(feed: Feed, begin: Callable[[str], Callable[[str], None]]) -> Reading[None]:
    """Reads a call as an object; ``begin`` is told its name, and returns what takes its arguments.

    Raises:
        Malformed: it is none.
    """
    yield from feed.space()
    yield from feed.expect("{")
    yield from _key(feed, '"name"')
    yield from feed.expect('"')
    name = yield from feed.matching(NAME, MOST_NAME)
    yield from feed.expect('"')
    yield from feed.space()
    if (yield from feed.starts("}")):
        begin(name)("{}")
        return
    yield from feed.expect(",")
    yield from _key(feed, '"arguments"')
    yield from begun(feed, lambda: begin(name))
    yield from feed.space()
    yield from feed.expect("}")


def begun(feed: Feed, begin: Callable[[], Callable[[str], None]]) -> Reading[None]:
    """Reads arguments, an object. The call begins (``begin``) when they do.

    Raises:
        Malformed: they are none.
    """
    yield from feed.expect("{")
    argue = begin()
    feed.text = "{" + feed.text
    yield from feed.value(argue)


def _key(feed: Feed, name: str) -> Reading[None]:
    yield from feed.space()
    yield from feed.expect(name)
    yield from feed.space()
    yield from feed.expect(":")
    yield from feed.space()
