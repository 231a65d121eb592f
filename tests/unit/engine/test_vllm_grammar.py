"""Grammars for vLLM: what a grammar of a caller's own lets through is the same in one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer

from services.language.engine.vllm.grammar import one_text
from services.language.output.format import AnswerFormat, ToolChoice
from services.language.output.grammar import grammar_of


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(demo_model)


def matches(tokenizer: Any, grammar: str, text: str) -> bool:
    matcher = LLMatcher(from_tokenizer(tokenizer), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(token) for token in tokenizer.encode(text)) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('start: "yes" | "no"', "no", "maybe"),
        ('start: "{" format "}"\nformat: /[a}]{1,2}/', "{a}}", "{b}"),
        ('root ::= "red" | "blue"', "blue", "red."),
    ],
)
def test_a_grammar_within_a_grammar_is_one_text(tokenizer: Any, grammar: str, right: str, wrong: str) -> None:
    given = grammar_of(AnswerFormat("grammar", grammar, "grammar"), (), ToolChoice("none"), None, None, False)
    assert given is not None
    made = one_text(given)
    assert not made.startswith("{")
    for text, allowed in ((right, True), (wrong, False)):
        assert matches(tokenizer, given, text) is allowed
        assert matches(tokenizer, LLMatcher.grammar_from_lark(made), text) is allowed


def test_one_text_stays_as_it_is() -> None:
    assert one_text('%llguidance {}\nstart: "@nested"\n') == '%llguidance {}\nstart: "@nested"\n'
