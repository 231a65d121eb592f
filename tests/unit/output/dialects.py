"""What tests of dialects share: tokenizers that know the marks, or do not, and how each dialect spells calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from services.language.output import glm, hermes, kimi, mistral
from services.language.output.calls import CallReader
from services.language.output.dialects import Dialect
from services.language.output.format import Tool
from tests.processes import DEMO_MODEL

Call = tuple[str, dict[str, Any]]

MARKS = {
    "hermes": (hermes.BEGIN, hermes.END),
    "glm": (hermes.BEGIN, hermes.END, glm.KEY, glm.KEY_END, glm.VALUE, glm.VALUE_END),
    "kimi": (kimi.SECTION, kimi.BEGIN, kimi.ARGUMENTS, kimi.END, kimi.SECTION_END),
    "mistral": (mistral.TRIGGER, mistral.ARGUMENTS, mistral.CALL_ID),
}
DIALECTS: dict[str, Callable[[Any], Dialect]] = {
    "hermes": hermes.Hermes,
    "glm": lambda tokenizer: glm.Glm(tokenizer, "</arg_key>\n<arg_value>"),
    "glm on one line": lambda tokenizer: glm.Glm(tokenizer, "</arg_key><arg_value>"),
    "kimi": kimi.Kimi,
    "mistral": lambda tokenizer: mistral.Mistral(tokenizer, "[ARGS]"),
    "mistral with ids": lambda tokenizer: mistral.Mistral(tokenizer, "[CALL_ID][ARGS]"),
    "mistral in a list": lambda tokenizer: mistral.Mistral(tokenizer, "[TOOL_CALLS]["),
}


def tokenizer_with(marks: Sequence[str], special: bool | None) -> Any:
    """The demo model's tokenizer, to which ``marks`` are special tokens, tokens, or (None) text like any other."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO_MODEL)
    if special is not None:
        tokenizer.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks], special_tokens=special)
    return tokenizer


@cache
def dialect_named(name: str, special: bool | None = None) -> tuple[Any, Dialect]:
    """A dialect, and the tokenizer that it is for."""
    tokenizer = tokenizer_with(MARKS[name.split()[0]], special)
    return tokenizer, DIALECTS[name](tokenizer)


def spelled(name: str, calls: Sequence[Call]) -> str:
    """``calls`` as a model of the dialect writes them."""
    whole = [json.dumps({"name": function, "arguments": arguments}, ensure_ascii=False) for function, arguments in calls]
    text = [(function, json.dumps(arguments, ensure_ascii=False)) for function, arguments in calls]
    if name == "hermes":
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in whole)
    if name.startswith("glm"):
        newline = "\n" if name == "glm" else ""
        return "\n".join(_glm(function, arguments, newline) for function, arguments in calls)
    if name == "kimi":
        ones = [
            f"{kimi.BEGIN}functions.{function}:{number}{kimi.ARGUMENTS}{arguments}{kimi.END}"
            for number, (function, arguments) in enumerate(text)
        ]
        return f"{kimi.SECTION}{''.join(ones)}{kimi.SECTION_END}"
    if name == "mistral":
        return "".join(f"[TOOL_CALLS]{function}[ARGS]{arguments}" for function, arguments in text)
    if name == "mistral with ids":
        return "".join(f"[TOOL_CALLS]{function}[CALL_ID]abcdefgh{at}[ARGS]{args}" for at, (function, args) in enumerate(text))
    return f"[TOOL_CALLS] [{', '.join(whole)}]"


def _glm(function: str, arguments: dict[str, Any], newline: str) -> str:
    told = "".join(
        f"<arg_key>{key}</arg_key>{newline}"
        f"<arg_value>{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}</arg_value>{newline}"
        for key, value in arguments.items()
    )
    return f"<tool_call>{function}{newline}{told}</tool_call>"


@dataclass
class Read:
    """What a reader has told of a text."""

    content: str = ""
    ids: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        return [(name, json.loads(arguments)) for name, arguments in zip(self.names, self.arguments, strict=True)]


def read(reader: CallReader, pieces: Iterable[str]) -> Read:
    """All that ``reader`` tells of ``pieces``; that calls are told in order, and begin with their id and name, is checked."""
    found = Read()
    for content, deltas in (*(reader.push(piece) for piece in pieces), reader.flush()):
        found.content += content
        for delta in deltas:
            if delta.name is not None:
                assert delta.id is not None
                found.ids.append(delta.id)
                found.names.append(delta.name)
                found.arguments.append("")
            assert delta.index == len(found.names) - 1
            found.arguments[delta.index] += delta.arguments
    return found


WEATHER = Tool(
    "get_weather",
    "The weather of a place.",
    {
        "type": "object",
        "properties": {
            "place": {"type": "string", "minLength": 1, "maxLength": 12},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "exact": {"type": "boolean"},
            "where": {"$ref": "#/$defs/Point"},
            "hours": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}, "maxItems": 3},
            "tag": {"type": ["string", "null"], "maxLength": 4},
            "note": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "null"}]},
        },
        "required": ["place", "days", "where"],
        "$defs": {
            "Point": {
                "type": "object",
                "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "y": {"enum": [1, 2]}},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
    },
)
CLOCK = Tool("clock", None, {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = (WEATHER, CLOCK)
