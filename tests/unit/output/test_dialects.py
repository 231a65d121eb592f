"""Dialects of calls: what a grammar lets a model write is what is read, in whatever pieces it comes."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from itertools import pairwise
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from services.language.output.dialects import dialect_of
from services.language.output.format import Tool
from services.language.output.vocabulary import Vocabulary
from services.language.prompt.detokenizer import Detokenizer
from shared.errors import InvalidRequest
from tests.unit.output.dialects import (
    CLOCK,
    DIALECTS,
    MARKS,
    TOOLS,
    WEATHER,
    Call,
    dialect_named,
    read,
    spelled,
    tokenizer_with,
)

EVERY = sorted(DIALECTS)
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
PLACE = {"place": 'Köln "Süd" {a} \\ 日本 🙂', "days": 3, "where": {"x": 1}}


def written(tokenizer: Any, kept: frozenset[int], rule: str, rng: random.Random, most: int = 1500) -> str:
    """A text that ``rule`` allows, chosen at random token by token."""
    matcher = Vocabulary(tokenizer, [tokenizer.eos_token_id]).compile(f"start: {rule}")
    mask = allocate_token_bitmask(1, len(tokenizer))
    detokenizer = Detokenizer(tokenizer, kept)
    text = ""
    for _ in range(most):
        if matcher.is_stopped():
            return text + detokenizer.flush()
        fill_next_token_bitmask(matcher, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[: len(tokenizer)])
        # Ends what may end, so that nothing is long by chance.
        token = tokenizer.eos_token_id if matcher.is_accepting() else int(rng.choice(list(allowed)))
        assert matcher.consume_token(token), matcher.get_error()
        if token != tokenizer.eos_token_id:
            text += detokenizer.push(token)
    raise AssertionError(f"{text!r} does not end")


@pytest.mark.parametrize("special", [True, False, None])
@pytest.mark.parametrize("name", EVERY)
def test_what_the_grammar_allows_is_read_back(name: str, special: bool | None) -> None:
    tokenizer, dialect = dialect_named(name, special)
    rng = random.Random(f"{name}{special}")
    for _ in range(5):
        found = read(dialect.reader(TOOLS), written(tokenizer, dialect.kept, dialect.rule(TOOLS, True), rng))
        assert found.content == ""
        assert found.calls
        for function, arguments in found.calls:
            jsonschema.validate(arguments, SCHEMAS[function])


@pytest.mark.parametrize("special", [True, None])
@pytest.mark.parametrize("name", EVERY)
def test_the_grammar_allows_what_models_write(name: str, special: bool | None) -> None:
    tokenizer, dialect = dialect_named(name, special)
    calls: list[Call] = [("get_weather", PLACE | {"place": "Köln"}), ("clock", {})]
    for parallel, count, accepted in ((True, 2, True), (True, 1, True), (False, 1, True), (False, 2, False)):
        matcher = Vocabulary(tokenizer, [tokenizer.eos_token_id]).compile(f"start: {dialect.rule(TOOLS, parallel)}")
        ids = tokenizer.encode(spelled(name, calls[:count]), add_special_tokens=False)
        assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == accepted


@pytest.mark.parametrize("name", EVERY)
def test_a_rule_may_go_on_after_its_trigger(name: str) -> None:
    tokenizer, dialect = dialect_named(name)
    text = spelled(name, [("clock", {})]).removeprefix(dialect.trigger)
    rule = dialect.rule([CLOCK], parallel=False, opened=True)
    matcher = Vocabulary(tokenizer, [tokenizer.eos_token_id]).compile(f"start: {rule}")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


def cut(text: str, data: st.DataObject) -> list[str]:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=len(text))) | {0, len(text)})
    return [text[start:end] for start, end in pairwise(places)]


words = st.text(st.sampled_from("ab{}[]\"'\\,: \nüß日🙂0"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
some_calls = st.lists(
    st.tuples(st.sampled_from(["get_weather", "f-1.x"]), st.dictionaries(st.sampled_from("abc"), values, max_size=3)),
    min_size=1,
    max_size=3,
)
contents = st.text(st.sampled_from("<>[]|ab \nü🙂"), max_size=10)
ANY = Tool("f-1.x", None, {"properties": {key: {} for key in "abc"}})


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=100)
@given(calls=some_calls, before=contents, after=contents, data=st.data())
def test_calls_are_read_whatever_pieces_they_come_in(
    name: str, calls: list[Call], before: str, after: str, data: st.DataObject
) -> None:
    if name.startswith("glm"):
        # Where nothing says of which type a value is, a string that is JSON cannot be told from what it says.
        calls = [(function, {key: value for key, value in told.items() if not _is_json(value)}) for function, told in calls]
    _, dialect = dialect_named(name)
    found = read(dialect.reader(), cut(f"{before}{spelled(name, calls)}{after}", data))
    assert found.calls == calls
    assert found.content == f"{before.rstrip()}{after.lstrip()}"


def _is_json(value: Any) -> bool:
    try:
        json.loads(value)
    except (TypeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=200)
@given(data=st.data())
def test_any_text_reads_the_same_in_any_pieces(name: str, data: st.DataObject) -> None:
    parts = [*MARKS[name.split()[0]], '{"name": "f", ', '"arguments": {"a', '": 1}', "}", "f", "functions.f:0", *'[]"{\\, \nüx']
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=20)))
    _, dialect = dialect_named(name)
    whole, pieces = read(dialect.reader(), [text]), read(dialect.reader(), cut(text, data))
    assert (pieces.content, pieces.names, pieces.arguments) == (whole.content, whole.names, whole.arguments)
    if not whole.names:
        assert whole.content == text


@pytest.mark.parametrize("name", EVERY)
def test_what_only_looks_like_a_call_is_content(name: str) -> None:
    _, dialect = dialect_named(name)
    for text in (
        f"The mark is {dialect.trigger} and no call.",
        f"{dialect.trigger[:-1]} {dialect.trigger}{dialect.trigger} !",
        f' {dialect.trigger}{{"name": 1}} ',
        dialect.trigger,
    ):
        assert read(dialect.reader(), text) == read(dialect.reader(), [text])
        assert read(dialect.reader(), text).content == text


@pytest.mark.parametrize("name", EVERY)
def test_a_call_that_is_cut_off_gives_what_there_is(name: str) -> None:
    _, dialect = dialect_named(name)
    text = spelled(name, [("clock", {}), ("get_weather", {"place": "Köln am Rhein"})])
    found = read(dialect.reader(TOOLS), text[: text.index(" Rhein")])
    assert found.names == ["clock", "get_weather"]
    assert found.arguments == ["{}", '{"place": "Köln am']
    assert found.content == ""


@pytest.mark.parametrize("name", EVERY)
def test_arguments_are_told_while_they_come(name: str) -> None:
    _, dialect = dialect_named(name)
    reader, text = dialect.reader(TOOLS), spelled(name, [("get_weather", {"place": "Köln" * 20})])
    told = [sum(len(delta.arguments) for delta in reader.push(char)[1]) for char in text]
    # Each character of the value is told by the next one at the latest, for a mark could begin with it.
    assert sum(1 for size in told if size) > 75


def test_a_second_call_that_is_none_is_content() -> None:
    for name, good, bad in (
        ("kimi", spelled("kimi", [("clock", {})]), "<|tool_call_begin|>???"),
        ("mistral in a list", "[TOOL_CALLS][" + '{"name": "clock", "arguments": {}}', ', {"nam": 1}]'),
    ):
        _, dialect = dialect_named(name)
        found = read(dialect.reader(), good.removesuffix("<|tool_calls_section_end|>") + bad)
        assert found.calls == [("clock", {})]
        assert found.content == bad


def test_ids_are_the_models_where_it_writes_them_and_else_as_its_template_wants_them() -> None:
    calls: list[Call] = [("clock", {}), ("clock", {})]
    for name, pattern in (
        ("hermes", r"call_[0-9a-f]{24}"),
        ("kimi", r"functions\.clock:[01]"),
        ("mistral", r"[a-zA-Z0-9]{9}"),
        ("mistral with ids", r"abcdefgh[01]"),
    ):
        _, dialect = dialect_named(name)
        ids = read(dialect.reader(), [spelled(name, calls)]).ids
        assert len(set(ids)) == 2
        for call_id in ids:
            assert re.fullmatch(pattern, call_id)


def test_glm_reads_values_by_their_types() -> None:
    properties: dict[str, Any] = {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "color": {"$ref": "#/$defs/Color"},
        "list": {"type": "array"},
    }
    tool = Tool("f", None, {"properties": properties, "$defs": {"Color": {"enum": ["red", "1"]}}})
    _, dialect = dialect_named("glm")
    raw = {"text": "1", "number": "2", "maybe": "3", "either": "4", "color": "1", "list": '["a"]', "unknown": "[]"}
    found = read(dialect.reader([tool]), [spelled("glm", [("f", raw)])])
    assert found.calls == [
        ("f", {"text": "1", "number": 2, "maybe": "3", "either": 4, "color": "1", "list": ["a"], "unknown": []})
    ]
    found = read(dialect.reader([tool]), [spelled("glm", [("f", {"maybe": None, "number": "none", "either": "x"})])])
    assert found.calls == [("f", {"maybe": None, "number": "none", "either": "x"})]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}<arg_key>", "glm"),
        ("<|tool_calls_section_begin|>", "kimi"),
        ("[TOOL_CALLS]", "mistral"),
        ("<tool_call>", "hermes"),
        ("{{ messages }}", "hermes"),
    ],
)
def test_the_template_tells_the_dialect(template: str, name: str) -> None:
    assert dialect_of(tokenizer_with((), None), template).name == name


@pytest.mark.parametrize("name", EVERY)
def test_marks_that_are_special_tokens_are_kept(name: str) -> None:
    tokenizer, dialect = dialect_named(name, special=True)
    assert dialect.kept == {tokenizer.convert_tokens_to_ids(mark) for mark in MARKS[name.split()[0]]}
    assert dialect_named(name, special=False)[1].kept == frozenset()
    ids = tokenizer.encode(f"<|im_start|>{spelled(name, [('clock', {})])}<|vision_end|>")
    detokenizer = Detokenizer(tokenizer, dialect.kept)
    text = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert text == spelled(name, [("clock", {})])


def test_a_tool_without_a_schema_takes_any_object() -> None:
    tool = Tool("f")
    for name in EVERY:
        tokenizer, dialect = dialect_named(name)
        matcher = Vocabulary(tokenizer, [tokenizer.eos_token_id]).compile(f"start: {dialect.rule([tool], False)}")
        ids = tokenizer.encode(spelled(name, [("f", {"a": "b", "c": [1]})]), add_special_tokens=False)
        assert matcher.try_consume_tokens(ids) == len(ids)


def test_a_tool_takes_no_arguments_that_it_does_not_name() -> None:
    for name in EVERY:
        tokenizer, dialect = dialect_named(name)
        matcher = Vocabulary(tokenizer, [tokenizer.eos_token_id]).compile(f"start: {dialect.rule([WEATHER], False)}")
        ids = tokenizer.encode(spelled(name, [("get_weather", {"town": "x"})]), add_special_tokens=False)
        assert matcher.try_consume_tokens(ids) < len(ids)


HOSTILE: list[dict[str, Any]] = [
    {"type": "string"},
    {"properties": []},
    {"properties": {"a": {"type": 5}}, "required": "a"},
    {"properties": {"a": {"type": [[]], "enum": 1, "minLength": "x", "maxLength": -1}}, "required": [{}]},
    {
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}] * 20 + [{"type": "string"}]}},
    },
    {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}] * 20}}},
    {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}},
    {"properties": {"a": {"$ref": "https://example.org"}, "b": True, "c": None, "d": {"$ref": {}}}},
    {"properties": {str(at): {"$ref": "#/$defs/A"} for at in range(2000)}, "$defs": {"A": {"enum": ["x" * 99] * 2000}}},
    {
        "properties": {str(at): {"$ref": "#/$defs/A"} for at in range(2000)},
        "$defs": {"A": {"type": "array", "items": {"enum": ["x" * 99] * 2000}}},
    },
]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("parameters", HOSTILE)
def test_a_rule_of_any_parameters_is_made_soon_or_refused(name: str, parameters: dict[str, Any]) -> None:
    """What rules of schemas that are none are worth, their compilation tells."""
    _, dialect = dialect_named(name)
    with suppress(InvalidRequest):
        assert len(dialect.rule([Tool("f", None, parameters)], True)) < 2_000_000


def test_parameters_that_are_no_objects_are_refused() -> None:
    _, dialect = dialect_named("hermes")
    for parameters in HOSTILE[:3]:
        with pytest.raises(InvalidRequest, match="f are no JSON schema of an object"):
            dialect.rule([Tool("f", None, parameters)], True)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "maxLength": 3}, ["", "abc", "日本語"], ["abcd"]),
        ({"type": ["string", "null"], "maxLength": 3}, ["abc", "null"], ["abcde"]),
        ({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]}, ["ab", "1234"], ["abcde"]),
        ({"enum": ["red", 7, None]}, ["red", "7", "null"], ['"red"', "blue"]),
        ({"const": "a"}, ["a"], ["b"]),
        ({"$ref": "#/$defs/A"}, ["1", "2"], ["x", "5"]),
        ({"type": "array", "items": {"$ref": "#/$defs/A"}}, ["[]", "[1, 2]"], ["[7]", "a"]),
        ({}, ["anything\\n", "{}", ""], []),
    ],
)
@pytest.mark.parametrize("special", [True, None])
def test_glm_spells_values_by_schema(special: bool | None, schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    tokenizer, dialect = dialect_named("glm", special)
    tool = Tool("f", None, {"properties": {"a": schema}, "required": ["a"], "$defs": {"A": {"enum": [1, 2]}}})
    vocabulary = Vocabulary(tokenizer, [tokenizer.eos_token_id])
    for value in (*good, *bad):
        matcher = vocabulary.compile(f"start: {dialect.rule([tool], False)}")
        ids = tokenizer.encode(spelled("glm", [("f", {"a": value})]), add_special_tokens=False)
        assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == (value in good), value
