"""Contents of messages as a chat template reads them: some know text only, and some nothing but parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MARK, _OTHER = "wanted", "other"
_TOLD = re.compile(rf"(?<!['\"]){_MARK}")
"""The mark as a text of its own, and not within what Python or JSON writes for a list of parts."""

_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}


@dataclass(frozen=True, slots=True)
class Reads:
    """Whether what a message says is told where it is text, and where it is parts."""

    text: bool
    parts: bool


def reads_of(render: Callable[[list[dict[str, Any]]], str]) -> dict[str, Reads]:
    """What a template, which ``render`` renders messages by, reads in the messages of each role: it is tried."""

    def told(role: str, form: Callable[[str], Any]) -> bool:
        try:
            return _TOLD.search(render(_conversation(role, form(_MARK), form(_OTHER)))) is not None
        except Exception:  # a template is a program of the checkpoint's; where it refuses this, it has not read it
            return False

    return {role: Reads(told(role, str), told(role, _as_parts)) for role in ("system", "user", "assistant", "tool")}


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _conversation(role: str, content: Any, other: Any) -> list[dict[str, Any]]:
    """One in which a ``role`` says ``content``, and whoever has to be there besides says what is ``other``."""
    user, said = {"role": "user", "content": other}, {"role": role, "content": content}
    if role == "system":
        return [said, user]
    if role == "assistant":
        return [user, said]
    if role == "tool":
        called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
        return [user, called, {**said, "tool_call_id": _CALL["id"]}]
    return [said]


def readable(messages: Sequence[dict[str, Any]], reads: Mapping[str, Reads]) -> list[dict[str, Any]]:
    """``messages`` with contents as parts, or as text, where only that is read."""
    return [{**message, "content": _readable(message["content"], reads.get(message["role"]))} for message in messages]


def _readable(content: Any, reads: Reads | None) -> Any:
    if not content or reads is None or reads.text == reads.parts:
        return content
    if isinstance(content, str):
        return content if reads.text else _as_parts(content)
    if reads.parts or any(part["type"] != "text" for part in content):
        return content
    return text_of(content)


def text_of(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """What a content says, without what is media in it."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")
