"""Grammars of whole answers: what they take and what they refuse, spelled by the tokens of a checkpoint."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tokenizers import AddedToken

from services.language.output.dialects import Dialect, dialect_of
from services.language.output.format import AnswerFormat, Tool, ToolChoice
from services.language.output.grammar import Grammars, grammar_of
from services.language.output.reasoning import Thinking
from services.language.output.vocabulary import GrammarError, Vocabulary
from shared.errors import InvalidRequest
from tests.families.parts import make_tokenizer

KIMI = "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
LOOK = Tool("look", None, {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]})
WAIT = Tool("wait")
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "up"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "sing", "arguments": {}}\n</tool_call>'
OBJECT = AnswerFormat("json_object")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One with Kimi's marks as special tokens, and Hermes' and those of reasoning as added ones that are text."""
    made = make_tokenizer("", *KIMI, "<|tool_calls_section_end|>")
    made.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in ("<tool_call>", "<think>", "</think>")])
    return made


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Any) -> Vocabulary:
    return Vocabulary(tokenizer, {tokenizer.eos_token_id})


def grammar(
    answer_format: AnswerFormat | None = None,
    tools: tuple[Tool, ...] = (),
    choice: ToolChoice | None = None,
    dialect: Dialect | None = None,
    thinking: Thinking | None = None,
    opened: bool = False,
) -> str:
    made = grammar_of(answer_format, tools, choice or ToolChoice(), dialect, thinking, opened)
    assert made is not None
    return made


def schema(value: Any) -> str:
    return grammar(AnswerFormat("json_schema", value))


class Reader:
    """Reads texts by a grammar, each as the tokenizer splits it."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Any, text: str) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._grammar = text

    def takes(self, text: str) -> bool:
        """Whether ``text`` is a whole answer."""
        matcher = self._vocabulary.compile(self._grammar)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.fixture
def reading(vocabulary: Vocabulary, tokenizer: Any) -> Any:
    return lambda text: Reader(vocabulary, tokenizer, text)


def test_without_form_and_tools_anything_goes(tokenizer: Any) -> None:
    hermes = dialect_of(tokenizer, "")
    assert grammar_of(None, (), ToolChoice(), hermes, Thinking(), False) is None
    assert grammar_of(None, (LOOK,), ToolChoice("none"), hermes, None, False) is None


def test_json_has_no_white_space_to_go_on_with(reading: Any) -> None:
    reader = reading(grammar(OBJECT))
    assert reader.takes('{"a":1,"b":[true,null]}')
    assert reader.takes('{"a": 1, "b": [true, null]}')
    assert not reader.takes('{"a":  1}')
    assert not reader.takes('{"a":1}\n')
    assert not reader.takes("[1]")


def test_objects_have_declared_members_only_unless_they_say_so(reading: Any) -> None:
    declared = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert reading(schema(declared)).takes('{"a":"x"}')
    assert not reading(schema(declared)).takes('{"a":"x","b":1}')
    assert reading(schema({**declared, "additionalProperties": True})).takes('{"a":"x","b":1}')
    # One part's members are not undeclared ones of another.
    parts = [declared, {"type": "object", "properties": {"b": {"type": "integer"}}}]
    assert reading(schema({"allOf": parts})).takes('{"a":"x","b":1}')


def test_numbers_stay_within_what_is_exact_where_nothing_else_bounds_them(reading: Any) -> None:
    for kind in ("integer", "number"):
        reader = reading(schema({"type": kind}))
        assert reader.takes("9007199254740991")
        assert reader.takes("-9007199254740991")
        assert not reader.takes("9007199254740992")
    assert reading(schema({"type": "integer", "minimum": 10**17})).takes(str(10**17))
    assert not reading(schema({"type": ["integer", "null"], "minimum": 3})).takes("2")
    assert reading(schema({"enum": [10**17]})).takes(str(10**17))


def test_formats_that_are_known_hold_and_others_mean_nothing(reading: Any) -> None:
    assert not reading(schema({"type": "string", "format": "date"})).takes('"today"')
    assert reading(schema({"type": "string", "format": "date"})).takes('"2026-11-30"')
    assert reading(schema({"type": "string", "format": "path"})).takes('"/tmp"')
    # A member that is called so is no keyword.
    assert reading(schema({"type": "object", "properties": {"format": {"type": "string"}}})).takes('{"format":"x"}')


def test_regular_expressions_match_as_a_whole(reading: Any) -> None:
    reader = reading(grammar(AnswerFormat("regex", r"^\d{2}/[a-f]+$")))
    assert reader.takes("12/abc")
    assert not reader.takes("12/")
    assert not reader.takes("112/abc")


def test_a_choice_is_one_of_its_texts(reading: Any) -> None:
    reader = reading(grammar(AnswerFormat("choice", ["red", "reddish", 'say "no"\n', "red"])))
    assert reader.takes("red")
    assert reader.takes("reddish")
    assert reader.takes('say "no"\n')
    assert not reader.takes("redd")


@pytest.mark.parametrize("text", ['start: "a" B\nB: /[0-9]+/', 'root ::= "a" [0-9]+'])
def test_grammars_come_in_lark_and_in_gbnf(reading: Any, text: str) -> None:
    plain = reading(grammar(AnswerFormat("grammar", text)))
    assert plain.takes("a12")
    assert not plain.takes("a")
    assert reading(grammar(AnswerFormat("grammar", text), thinking=Thinking(), opened=True)).takes("so b it is</think>a12")


def test_reasoning_is_free_and_the_form_binds_what_follows(reading: Any) -> None:
    closed = reading(grammar(OBJECT, thinking=Thinking()))
    assert closed.takes('{"a":1}')
    assert closed.takes('<think>{ <tool_call> or so</think>\n\n{"a":1}')
    assert not closed.takes('<think>no end {"a":1}')
    opened = reading(grammar(OBJECT, thinking=Thinking(), opened=True))
    assert opened.takes('hm</think>{"a":1}')
    assert not opened.takes("hm</think>hm")


def test_marks_of_reasoning_are_text_also_where_they_are_special_tokens() -> None:
    special = make_tokenizer("", "<think>", "</think>")
    reader = Reader(Vocabulary(special, {special.eos_token_id}), special, grammar(OBJECT, thinking=Thinking()))
    assert reader.takes('<think>hm</think>{"a":1}')


def test_text_is_free_until_a_call_begins(reading: Any, tokenizer: Any) -> None:
    reader = reading(grammar(tools=(LOOK, WAIT), dialect=dialect_of(tokenizer, "")))
    assert reader.takes("Hello, a <tool and a { come.")
    assert reader.takes(CALL)
    assert reader.takes(f"I look.\n{CALL}\n{CALL}")
    assert not reader.takes(OTHER)
    assert not reader.takes(f"I sing. {OTHER}")
    alone = reading(grammar(tools=(LOOK,), choice=ToolChoice(parallel=False), dialect=dialect_of(tokenizer, "")))
    assert alone.takes(f"I look.\n{CALL}")
    assert not alone.takes(f"{CALL}\n{CALL}")


def test_a_call_within_reasoning_is_text(reading: Any, tokenizer: Any) -> None:
    reader = reading(grammar(tools=(LOOK,), dialect=dialect_of(tokenizer, ""), thinking=Thinking()))
    assert reader.takes(f"<think>Perhaps {OTHER}?</think>Hello.")
    assert reader.takes(f"<think>So.</think>\n\n{CALL}")
    assert not reader.takes(f"<think>So.</think>{OTHER}")


def test_calls_by_special_tokens_are_told_from_text_that_spells_them(reading: Any, tokenizer: Any) -> None:
    kimi = dialect_of(tokenizer, KIMI[0])
    section, begin, argue, end = KIMI
    call = f'{section}{begin}functions.look:0{argue}{{"where": "up"}}{end}<|tool_calls_section_end|>'
    reader = reading(grammar(tools=(LOOK,), dialect=kimi))
    assert reader.takes("Hello.")
    assert reader.takes(f"I look. {call}")
    assert not reader.takes(f"I look. {call.replace('look', 'sing')}")
    assert not reading(grammar(OBJECT)).takes(f'{{"a":"{begin}"}}')  # a special token is never text


def test_required_calls_are_the_answer(reading: Any, tokenizer: Any) -> None:
    hermes = dialect_of(tokenizer, "")
    required = reading(grammar(tools=(LOOK, WAIT), choice=ToolChoice("required"), dialect=hermes))
    assert required.takes(CALL)
    assert not required.takes("Hello.")
    assert not required.takes(f"Hello. {CALL}")
    named = reading(grammar(tools=(LOOK, WAIT), choice=ToolChoice("required", "wait"), dialect=hermes))
    assert named.takes('<tool_call>\n{"name": "wait", "arguments": {"long": true}}\n</tool_call>')
    assert not named.takes(CALL)
    with pytest.raises(InvalidRequest, match="'sing'") as caught:
        grammar(tools=(LOOK,), choice=ToolChoice("required", "sing"), dialect=hermes)
    assert caught.value.param == "tool_choice"


def test_with_a_form_an_answer_is_calls_or_of_that_form(reading: Any, tokenizer: Any) -> None:
    reader = reading(grammar(OBJECT, (LOOK,), dialect=dialect_of(tokenizer, "")))
    assert reader.takes(CALL)
    assert reader.takes('{"a":1}')
    assert not reader.takes("Hello.")
    required = reading(grammar(OBJECT, (LOOK,), ToolChoice("required"), dialect_of(tokenizer, "")))
    assert not required.takes('{"a":1}')


def nested(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        made = {"type": "array", "items": made}
    return made


HOSTILE = {
    "nested": nested(5000),
    "large": {"enum": list(range(100_000))},
    "wide": {"type": "object", "properties": {str(number): {} for number in range(3000)}},
    "remote": {"$ref": "http://127.0.0.1:1/schema"},
    "missing": {"$ref": "#/$defs/none"},
    "itself": {"$ref": "#"},
    "circle": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}}, "$ref": "#/$defs/a"},
    "product": {"allOf": [{"anyOf": [{"properties": {f"{i}-{j}": {}}} for j in range(6)]} for i in range(8)]},
    "remainders": {"type": "integer", "multipleOf": 999_983},
    "look-around": {"type": "string", "pattern": "(?=a)a"},
    "crossed": {"type": "string", "pattern": "^(([a-z]+)+x)+$", "minLength": 500, "maxLength": 5000},
    "unknown": {"type": "strin"},
    "impossible": {"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": False},
    "unsupported": {"type": "array", "uniqueItems": True},
    "no schema": [1],
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_is_refused_at_once(tokenizer: Any, value: Any) -> None:
    grammars = Grammars(tokenizer, {tokenizer.eos_token_id})
    grammars.check(grammar(OBJECT), "response_format")
    began = time.monotonic()
    with pytest.raises(InvalidRequest) as caught:
        grammars.check(schema(value), "response_format")
    assert time.monotonic() - began < 1
    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 700


@pytest.mark.parametrize(
    "form",
    [
        AnswerFormat("regex", "(a"),
        AnswerFormat("choice", []),
        AnswerFormat("grammar", "start: nothing"),
        AnswerFormat("grammar", "root ::= ((("),
        AnswerFormat("grammar", '%import "/etc/passwd"\nstart: "a"'),
    ],
)
def test_forms_that_are_none_are_refused(tokenizer: Any, form: AnswerFormat) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Grammars(tokenizer, {tokenizer.eos_token_id}).check(grammar(form), form.param)
    assert caught.value.param == form.param


def test_a_tokenizer_without_bytes_is_refused_in_a_sentence() -> None:
    class Slow:
        pass

    with pytest.raises(GrammarError, match="tokenizer"):
        Vocabulary(Slow(), {0})
    with pytest.raises(InvalidRequest, match="tokenizer"):
        Grammars(Slow(), {0}).check(grammar(OBJECT), "response_format")
