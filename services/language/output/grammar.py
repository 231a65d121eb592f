"""Grammars of whole answers, in llguidance's Lark: reasoning, then calls of tools, or text of the form that was asked for.

Dialects spell calls (``dialects.py``), ``schema.py`` JSON; here their rules become one grammar, whose tokens ``vocabulary.py``
defines. What is text there includes the marks of reasoning, and those of calls that are no special tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from threading import Lock
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from services.language.output.dialects import Dialect
from services.language.output.format import AnswerFormat, Tool, ToolChoice
from services.language.output.marks import literal
from services.language.output.reasoning import Thinking
from services.language.output.schema import json_rule
from services.language.output.vocabulary import GrammarError, Vocabulary
from shared.errors import InvalidRequest
from shared.lru import ByteLRU

MOST_BYTES = 128 * 1024
"""Of one grammar."""

_KNOWN = 256


def grammar_of(
    answer_format: AnswerFormat | None,
    tools: Sequence[Tool],
    choice: ToolChoice,
    dialect: Dialect | None,
    thinking: Thinking | None,
    opened: bool,
) -> str | None:
    """The grammar of an answer; None where anything goes.

    Calls are well-formed, and of ``tools``: they are all of the answer where the choice is ``required``; else they are what
    follows the dialect's trigger, wherever in the text that is, or stand in the place of the ``answer_format``. Reasoning comes
    first where the model thinks, and is free; ``opened`` says whether the prompt has its mark already.

    Raises:
        InvalidRequest: the format is no schema or regular expression, or the choice names no tool.
    """
    calling = dialect if choice.mode != "none" else None
    if calling is not None:
        tools = _chosen(tools, choice)
    if calling is None or not tools:
        if answer_format is None:
            return None
        calls, auto = None, False
    else:
        calls, auto = calling, choice.mode == "auto"
    rules: list[str] = []
    nested: str | None = None
    if answer_format is not None and (calls is None or auto):
        nested, rule = _format_rule(answer_format)
        rules.append(f"format: {rule}")
    body = "format" if calls is None else "calls"
    if calls is not None:
        if auto and answer_format is None:
            body, some = _free_text(calls, tools, choice.parallel, thinking if not opened else None)
            rules += some
        else:
            body = "(calls | format)" if auto else "calls"
            rules.append(f"calls: {calls.rule(tools, choice.parallel)}")
    start = body
    if thinking is not None:
        start = f"{'' if opened else '('}reasoning GAP?{'' if opened else ')?'} {body}"
        begin = "" if opened else _escaped(thinking.begin)
        rules += [f"reasoning[lazy]: /{begin}(?s:.*){_escaped(thinking.end)}/", "GAP: /[ \\n]{1,4}/"]
    text = "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"
    if nested is None:
        return text
    return json.dumps({"grammars": [{"lark_grammar": text}, {"name": "nested", "lark_grammar": nested}]})


def _chosen(tools: Sequence[Tool], choice: ToolChoice) -> Sequence[Tool]:
    if choice.name is None:
        return tools
    chosen = [tool for tool in tools if tool.name == choice.name]
    if not chosen:
        raise InvalidRequest(f"tool_choice names {choice.name!r}, which is none of the tools.", param="tool_choice")
    return chosen


def _free_text(dialect: Dialect, tools: Sequence[Tool], parallel: bool, thinking: Thinking | None) -> tuple[str, list[str]]:
    """What ``start`` is made of, and the rules for it: text, and calls from the dialect's trigger on. The text does not begin
    with the mark of ``thinking``, which may come before it."""
    unlike = "" if thinking is None else f" & ~/{_escaped(thinking.begin)}(?s:.*)/"
    if dialect.opening.token is not None:
        return "TEXT? calls?", [f"TEXT: /(?s:.+)/{unlike}", f"calls: {dialect.rule(tools, parallel)}"]
    rules = [
        f"TEXT: /(?s:.*)/{unlike}",
        f"OPENING: /(?s:.*){_escaped(dialect.trigger)}/{unlike}",
        "opening[lazy]: OPENING",
        "text: TEXT",
        f"calls: {dialect.rule(tools, parallel, opened=True)}",
    ]
    return ("(opening calls)* text" if parallel else "(text | opening calls)"), rules


def _format_rule(answer_format: AnswerFormat) -> tuple[str | None, str]:
    """The body of the rule for a form; and the grammar beside it that it refers to, where the form is a grammar."""
    kind, value, param = answer_format.kind, answer_format.value, answer_format.param
    try:
        if kind == "json_object":
            return None, json_rule({"type": "object"})
        if kind == "json_schema":
            return None, json_rule(value)
        if kind == "regex":
            return None, f"/{regex_to_lark(_unanchored(str(value)), 'd')}/"
        if kind == "choice":
            if not value:
                raise InvalidRequest("A choice needs at least one text to choose.")
            return None, " | ".join(literal(text) for text in dict.fromkeys(value))
        return _lark_of(str(value)), "@nested"
    except InvalidRequest as error:
        error.param = error.param or param
        raise
    except Exception as error:
        raise InvalidRequest(f"The {kind} cannot be read: {error}", param=param) from error


def _lark_of(text: str) -> str:
    """A grammar in Lark; one in GBNF, as llama.cpp's and vLLM's clients have them, is translated."""
    return str(any_to_lark(text)) if "::=" in text else text


def _unanchored(pattern: str) -> str:
    """Without the marks of beginning and end: an answer matches as a whole in any case."""
    return pattern.removeprefix("^").removesuffix("$") if not pattern.endswith("\\$") else pattern.removeprefix("^")


def _escaped(text: str) -> str:
    """A text within a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/")


class Grammars:
    """Tells which grammars can be compiled for a checkpoint. Used by threads."""

    def __init__(self, tokenizer: Any, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._vocabulary: Vocabulary | None = None
        self._good: ByteLRU[bytes, bool] = ByteLRU(_KNOWN)
        self._lock = Lock()

    def check(self, grammar: str, param: str) -> None:
        """Compiles a grammar, if it is not known to be good.

        Raises:
            InvalidRequest: it cannot be compiled, or would cost too much, with the reason.
        """
        raw = grammar.encode()
        if len(raw) > MOST_BYTES:
            raise InvalidRequest(f"{param}: its grammar takes {len(raw)} bytes, more than {MOST_BYTES}.", param=param)
        key = hashlib.blake2b(raw, digest_size=16).digest()
        with self._lock:
            if self._good.get(key):
                return
        try:
            self._opened().compile(grammar)
        except GrammarError as error:
            raise InvalidRequest(f"{param}: no answer can be held to it: {error}.", param=param) from error
        with self._lock:
            self._good.put(key, True, 1)

    def _opened(self) -> Vocabulary:
        """The tokens, read when the first grammar comes."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._tokenizer, self._eos_ids)
            return self._vocabulary
