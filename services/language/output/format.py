"""What a request wants of its answer's form, and what an answer's text turns out to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. ``parameters`` is the JSON schema of its arguments, an object; None takes any."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are called: as the model likes (``auto``), certainly (``required``), or not; ``name`` is the only one that
    may be. Without ``parallel`` an answer has at most one call."""

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The form that an answer has to have. ``value`` is a JSON schema (``json_schema``), a regular expression, the texts to
    choose from, or a grammar in llguidance's Lark; ``json_object`` needs none. ``param`` is its place in the request."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    value: Any = None
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the ``index``-th call of an answer: ``id`` and ``name`` come once, with its beginning; ``arguments`` is JSON
    text, in pieces."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a piece of an answer's text is made of."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = field(default_factory=tuple)
