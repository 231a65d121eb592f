"""Tools in prompts: as objects for chat templates that know them, in words for those that do not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta

from services.language.output.format import Tool
from services.language.output.hermes import BEGIN, END
from services.language.prompt.contents import text_of

_INTRODUCTION = f"""\
You can call functions. Each line between <tools> and </tools> is one, with the JSON schema of its arguments:
<tools>
{{tools}}
</tools>
To call a function, write its name and its arguments as JSON between {BEGIN} and {END}, once for each call:
{BEGIN}
{{{{"name": "the function's name", "arguments": {{{{"an argument": "its value"}}}}}}}}
{END}
What a call gave comes back between <tool_response> and </tool_response>."""


def knows_tools(template: str) -> bool:
    """Whether a chat template reads tools."""
    try:
        read = meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template))
    except TemplateSyntaxError:  # tags that only transformers' environment has
        return re.search(r"\btools\b", template) is not None
    return "tools" in read


def as_objects(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as OpenAI's objects, which chat templates read."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there are calls, or results of such, among ``messages``."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


def in_words(messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """``messages`` for a chat template that knows no tools: the system's says which there are, calls are text of the
    assistant's, and results that come one after the other are one message of the user's."""
    told: list[dict[str, Any]] = []
    before = None
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            result = f"<tool_response>\n{text_of(content)}\n</tool_response>"
            if before == "tool":
                told[-1] = _joined(told[-1], "\n", result)
            else:
                told.append({"role": "user", "content": result})
        elif message.get("tool_calls"):
            calls = "\n".join(_call(call["function"]) for call in message["tool_calls"])
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            told.append(_joined(rest, "\n", calls))
        else:
            told.append(message)
        before = role
    return _introduced(told, tools) if tools else told


def _introduced(messages: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    lines = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
    introduction = _INTRODUCTION.format(tools=lines)
    if messages and messages[0]["role"] == "system":
        return [_joined(messages[0], "\n\n", introduction), *messages[1:]]
    return [{"role": "system", "content": introduction}, *messages]


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = dict(tool.parameters)
    return function


def _call(function: Mapping[str, Any]) -> str:
    told = {"name": function["name"], "arguments": function["arguments"]}
    return f"{BEGIN}\n{json.dumps(told, ensure_ascii=False)}\n{END}"


def _joined(message: Mapping[str, Any], between: str, text: str) -> dict[str, Any]:
    """``message`` with more text at its end."""
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": f"{between if content else ''}{text}"}]}
    return {**message, "content": f"{content}{between}{text}" if content else text}
