"""Calls with each argument between marks of its own: GLM-4.5's way. Strings stand there as they are, all else as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from services.language.output.arguments import (
    alternatives_of,
    arguments_of,
    choices_of,
    resolved,
    type_of,
    types_of,
    value_rule,
)
from services.language.output.calls import MOST_NAME, NAME, CallReader, MarkedCalls
from services.language.output.feed import Malformed, Reading
from services.language.output.format import Tool
from services.language.output.hermes import BEGIN, END
from services.language.output.marks import Mark, literal, mark_of, tokens_of
from shared.errors import InvalidRequest

KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"

_KEY = re.compile("[^<]+")
_MOST_RULES = 1_000_000
"""Characters that a grammar may have: what tools refer to again and again, it repeats."""

_MOST_LENGTH = 10_000
"""Characters up to which a string's length is counted."""


class Glm:
    """``<tool_call>f\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>``, or all that on one line, as the
    template has it."""

    name = "glm"
    trigger = BEGIN

    def __init__(self, tokenizer: Any, template: str) -> None:
        marks = [mark_of(tokenizer, text) for text in (BEGIN, END, KEY, KEY_END, VALUE, VALUE_END)]
        self.opening, self._end, *self._marks = marks
        self.kept = tokens_of(marks)
        self._newline = '"\\n"' if f"{KEY_END}\n" in template or f"{KEY_END}\\n" in template else '""'

    def rule(self, tools: Sequence[Tool], parallel: bool, opened: bool = False) -> str:
        begin = "" if opened else f"{self.opening.lark} "
        more = f' ("\\n" {self.opening.lark} call_one)*' if parallel else ""
        named = " | ".join(f"call_{number}" for number in range(len(tools)))
        lines = [f"{begin}call_one{more}", f"call_one: ({named}) {self._end.lark}"]
        size = 0
        for number, tool in enumerate(tools):
            for line in self._call_rules(f"call_{number}", tool):
                lines.append(line)
                size += len(line)
                if size > _MOST_RULES:
                    raise InvalidRequest(
                        "The parameters of the tools are too large, with all that they refer to.", param="tools"
                    )
        return "\n".join(lines)

    def _call_rules(self, name: str, tool: Tool) -> Iterator[str]:
        schema = arguments_of(tool)
        properties: dict[str, Any] = schema.get("properties", {})
        required = [key for key in schema.get("required", []) if isinstance(key, str)]
        keys = {**properties, **{key: properties.get(key, {}) for key in required}}
        parts = [literal(tool.name), self._newline]
        for number, key in enumerate(keys):
            parts.append(f"{name}_{number}{'' if key in required else '?'}")
            yield f"{name}_{number}: {self._argument(literal(key), f'{name}_{number}_value')}"
            yield from self._value_rules(f"{name}_{number}_value", keys[key], schema)
        if not keys and schema.get("additionalProperties", True) is not False:
            parts.append(f"{name}_any*")
            yield f"{name}_any: {self._argument('/[a-zA-Z0-9_.-]{1,64}/', f'{name}_any_value')}"
            yield from self._value_rules(f"{name}_any_value", {}, schema)
        yield f"{name}: {' '.join(parts)}"

    def _argument(self, key: str, value: str) -> str:
        key_mark, key_end, value_mark, _ = (mark.lark for mark in self._marks)
        return f"{key_mark} {key} {key_end} {self._newline} {value_mark} {value} {self._newline}"

    def _value_rules(self, name: str, schema: Any, root: Mapping[str, Any], within: bool = False) -> Iterator[str]:
        """Rules for a value and the mark at its end; ``within`` alternatives, further ones are any text."""
        schema, end = resolved(schema, root), self._marks[-1]
        choices, several = choices_of(schema), _alternatives(schema)
        if choices is not None:
            spelled = (choice if isinstance(choice, str) else json.dumps(choice, ensure_ascii=False) for choice in choices)
            yield f"{name}: ({' | '.join(map(literal, spelled))}) {end.lark}"
        elif "string" not in types_of(schema, root):
            definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
            yield f"{name}: {name}_json {end.lark}"
            yield f"{name}_json: {value_rule({**definitions, **schema})}"
        elif several and not within:
            yield f"{name}: {' | '.join(f'{name}_{number}' for number in range(len(several)))}"
            for number, one in enumerate(several):
                yield from self._value_rules(f"{name}_{number}", one, root, within=True)
        else:
            yield from _text_rules(name, _length(schema.get("minLength")) or 0, _length(schema.get("maxLength")), end)

    def reader(self, tools: Sequence[Tool] = ()) -> CallReader:
        return _GlmCalls({tool.name: arguments_of(tool) for tool in tools})


class _GlmCalls(MarkedCalls):
    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(BEGIN)
        self._schemas = schemas

    def _calls(self) -> Reading[None]:
        feed = self._feed
        yield from feed.space()
        name = yield from feed.matching(NAME, MOST_NAME)
        yield from feed.space()
        schema = self._schemas.get(name, {})
        argue, before = None, "{"
        while not (yield from feed.starts(END)):
            yield from feed.expect(KEY)
            key = (yield from feed.matching(_KEY, MOST_NAME)).strip()
            yield from feed.expect(KEY_END)
            yield from feed.space()
            yield from feed.expect(VALUE)
            argue = argue or self._begin(name)
            argue(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._value(types_of(schema.get("properties", {}).get(key), schema), argue)
            yield from feed.space()
            before = ", "
        argue = argue or self._begin(name)
        argue("}" if before == ", " else "{}")

    def _value(self, types: frozenset[str], argue: Callable[[str], None]) -> Reading[None]:
        """Reads a value: a string's text as it comes, what else there may be at its end."""
        if types == {"string"}:
            argue('"')
            mark = yield from self._feed.until([VALUE_END], lambda text: argue(_escaped(text)))
            argue("" if mark is None else '"')
            if mark is None:
                raise Malformed(VALUE)
            return
        pieces: list[str] = []
        if (yield from self._feed.until([VALUE_END], pieces.append)) is None:
            raise Malformed(VALUE)
        written = "".join(pieces)
        argue(written.strip() if _is_json(written, types) else f'"{_escaped(written)}"')


def _alternatives(schema: Mapping[str, Any]) -> list[Any]:
    """What a value may be one of, where a string is only one of that."""
    named = schema.get("type")
    if isinstance(named, list) and len(named) > 1:
        return [{**schema, "type": "string"}, {**schema, "type": [each for each in named if each != "string"]}]
    return alternatives_of(schema)


def _is_json(text: str, types: frozenset[str]) -> bool:
    """Whether ``text`` is JSON of one of ``types``, and no string's text."""
    try:
        found = type_of(json.loads(text))
    except (ValueError, RecursionError):
        return False
    return found in types or (found == "integer" and "number" in types) or "string" not in types


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= _MOST_LENGTH else None


def _text_rules(name: str, least: int, most: int | None, end: Mark) -> Iterator[str]:
    """Rules for a string as it is, with so many characters, and the mark at its end."""
    characters = f"/(?s:.{{{least},{'' if most is None else most}}})/"
    if end.token is None:
        yield f"{name}[suffix={literal(end.text)}]: {characters}"
    else:
        yield f"{name}: {name}_text {end.lark}"
        yield f"{name}_text: {characters}"
