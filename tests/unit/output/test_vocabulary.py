"""Grammars by tokens: of tokenizers that write spaces as marks, and of schemas whose automata would be too large."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from services.language.output.dialects import Dialect
from services.language.output.format import AnswerFormat, Tool, ToolChoice
from services.language.output.grammar import Grammars, grammar_of
from services.language.output.hermes import Hermes
from services.language.output.vocabulary import GrammarError, Vocabulary
from shared.errors import InvalidRequest
from tests.processes import DEMO_MODEL
from tests.unit.test_prompt import bytewise  # noqa: F401

BY_SCHEMA = [
    {"allOf": [{"type": "integer", "multipleOf": 9999}, {"type": "integer", "multipleOf": 9997}]},
    {"type": "integer", "multipleOf": 9999, "anyOf": [{"multipleOf": 9997}]},
    {"type": "object", "properties": {f"a{n}": {"type": "integer", "multipleOf": 9999 - n} for n in range(200)}},
]
IN_LARK = ['{"type":"integer","multipleOf":999983}', '{"type":"integer","multipleO\\u0066":\n999983}']


@pytest.fixture(scope="module")
def demo() -> Any:
    return PreTrainedTokenizerFast.from_pretrained(DEMO_MODEL)


@pytest.mark.parametrize(
    "form",
    [AnswerFormat("json_schema", schema) for schema in BY_SCHEMA]
    + [AnswerFormat("grammar", f"start: %json {schema}") for schema in IN_LARK],
)
def test_multiples_of_many_remainders_are_refused_at_once(demo: Any, form: AnswerFormat) -> None:
    grammar = grammar_of(form, (), ToolChoice("none"), None, None, False)
    assert grammar is not None
    grammars, begun = Grammars(demo, {demo.eos_token_id}), time.perf_counter()
    with pytest.raises(InvalidRequest, match="multipleOf"):
        grammars.check(grammar, "x")
    assert time.perf_counter() - begun < 1


def test_multiples_of_few_remainders_are_fine(demo: Any) -> None:
    factors = (0.01, 0.25, 5, 10, 60)
    schema = {"type": "object", "properties": {f"a{factor}": {"type": "number", "multipleOf": factor} for factor in factors}}
    grammar = grammar_of(AnswerFormat("json_schema", schema), (), ToolChoice("none"), None, None, False)
    assert grammar is not None
    Grammars(demo, {demo.eos_token_id}).check(grammar, "x")


def test_what_is_certain_is_spelled_without_a_tokenizers_own_space(bytewise: Any) -> None:  # noqa: F811
    vocabulary = Vocabulary(bytewise, [0])
    matcher, written = vocabulary.compile('start: "red"'), b""
    while not matcher.is_stopped():
        [token] = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))[:1]
        assert matcher.consume_token(int(token))
        written += vocabulary.tokens[token] if token else b""
    assert written == b"red"


def test_properties_that_are_none_are_the_clients_fault(demo: Any) -> None:
    dialect: Dialect = Hermes(demo)
    tool = Tool("f", None, {"properties": {"a": {"properties": 5}}})
    grammar = grammar_of(None, [tool], ToolChoice(), dialect, None, False)
    assert grammar is not None
    with pytest.raises(InvalidRequest):
        Grammars(demo, {demo.eos_token_id}).check(grammar, "tools")


def test_a_model_whose_answers_never_end_has_no_grammars(demo: Any) -> None:
    with pytest.raises(GrammarError, match="no token that ends an answer"):
        Vocabulary(demo, [])
