"""Calls after ``[TOOL_CALLS]``: Mistral's ways, the list of objects and the newer one with a name before its arguments."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Sequence
from typing import Any

from services.language.output.arguments import arguments_rule
from services.language.output.calls import MOST_NAME, NAME, CallReader, MarkedCalls
from services.language.output.feed import Reading
from services.language.output.format import Tool
from services.language.output.hermes import begun, call_object, object_rules
from services.language.output.marks import literal, mark_of, tokens_of

TRIGGER, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_ID = re.compile(r"[a-zA-Z0-9]+")
_ID_SIZE = 9
"""Mistral's templates refuse ids of another length."""


class Mistral:
    """``[TOOL_CALLS][{"name": "f", "arguments": {}}]``, or ``[TOOL_CALLS]f[ARGS]{}`` for each call, as the template has it."""

    name = "mistral"
    trigger = TRIGGER

    def __init__(self, tokenizer: Any, template: str) -> None:
        self.opening, self._arguments, self._id = (mark_of(tokenizer, text) for text in (TRIGGER, ARGUMENTS, CALL_ID))
        self.kept = tokens_of((self.opening, self._arguments, self._id))
        self._named = ARGUMENTS in template
        self._with_id = CALL_ID in template

    def rule(self, tools: Sequence[Tool], parallel: bool, opened: bool = False) -> str:
        begin = "" if opened else f"{self.opening.lark} "
        if not self._named:
            more = ' (", " call_object)*' if parallel else ""
            return f'{begin}" "? "[" call_object{more} "]"\n{object_rules(tools)}'
        more = f" ({self.opening.lark} call_one)*" if parallel else ""
        call_id = f"{self._id.lark} /[a-zA-Z0-9]{{{_ID_SIZE}}}/ " if self._with_id else ""
        lines = [
            f"{begin}call_one{more}",
            "call_one: " + " | ".join(f"call_{number}" for number in range(len(tools))),
        ]
        for number, tool in enumerate(tools):
            lines.append(f"call_{number}: {literal(tool.name)} {call_id}{self._arguments.lark} call_arguments_{number}")
            lines.append(f"call_arguments_{number}: {arguments_rule(tool)}")
        return "\n".join(lines)

    def reader(self, tools: Sequence[Tool] = ()) -> CallReader:  # noqa: ARG002
        return _MistralCalls(TRIGGER)


class _MistralCalls(MarkedCalls):
    def _calls(self) -> Reading[None]:
        feed = self._feed
        yield from feed.space()
        if (yield from feed.starts("[")):
            yield from self._list()
            return
        name = yield from feed.matching(NAME, MOST_NAME)
        call_id = None
        if (yield from feed.starts(CALL_ID)):
            call_id = yield from feed.matching(_ID, MOST_NAME)
        yield from feed.starts(ARGUMENTS)
        yield from feed.space()
        yield from begun(feed, lambda: self._begin(name, call_id))

    def _list(self) -> Reading[None]:
        feed, more = self._feed, True
        while more:
            yield from call_object(feed, self._begin)
            feed.keep()
            yield from feed.space()
            more = yield from feed.starts(",")
        yield from feed.expect("]")

    def _new_id(self) -> str:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(_ID_SIZE))
