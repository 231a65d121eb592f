"""Tools and reasoning through the official client: calls valid by their schemas, results, and what was thought before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from examples.scenes import TALK
from tests.chats import MODEL
from tests.conftest import Pair
from tests.processes import Service

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "minLength": 1, "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "where": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "exact": {"type": "boolean"}},
            "required": ["x", "exact"],
            "additionalProperties": False,
        },
    },
    "required": ["place", "unit", "days", "where"],
    "additionalProperties": False,
}
PAINT: dict[str, Any] = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
SCHEMAS = {"get_weather": WEATHER, "paint": PAINT}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
QUESTION: dict[str, Any] = {"role": "user", "content": "How is the weather in Cologne?"}


@pytest.fixture(scope="module")
def sdk(pair: Pair) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{pair.language.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(sdk: openai.OpenAI, *messages: Any, **more: Any) -> Any:
    """The only choice of an answer."""
    arguments = {"model": MODEL, "max_tokens": 400, "temperature": 0, "tools": TOOLS} | more
    (choice,) = sdk.chat.completions.create(messages=list(messages), **arguments).choices
    return choice


def check(calls: Any) -> None:
    """Each call is of one of the tools, and valid by its schema."""
    for call in calls:
        assert call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize(("choice", "names"), [("required", set(SCHEMAS)), (NAMED, {"get_weather"})])
@pytest.mark.parametrize("temperature", [0, 1])
def test_tools_that_must_be_called_are(sdk: openai.OpenAI, choice: Any, names: set[str], temperature: float) -> None:
    for seed in range(3):
        said = ask(sdk, QUESTION, tool_choice=choice, temperature=temperature, seed=seed, parallel_tool_calls=False)
        assert said.finish_reason == "tool_calls"
        assert not said.message.content
        (call,) = said.message.tool_calls
        assert call.function.name in names
        check([call])


def test_a_streamed_call_is_the_same(sdk: openai.OpenAI) -> None:
    wanted: Any = {"tool_choice": NAMED, "parallel_tool_calls": False}
    whole = ask(sdk, QUESTION, **wanted)
    (expected,) = whole.message.tool_calls
    pieces = 0
    with sdk.chat.completions.stream(
        model=MODEL, messages=[QUESTION], max_tokens=400, temperature=0, tools=TOOLS, **wanted
    ) as stream:  # type: ignore[call-overload]
        for event in stream:
            pieces += event.type == "tool_calls.function.arguments.delta"
        (choice,) = stream.get_final_completion().choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == (expected.function.name, expected.function.arguments)
    assert choice.finish_reason == "tool_calls"
    assert pieces > 10


def test_a_result_is_answered(sdk: openai.OpenAI) -> None:
    said = ask(sdk, QUESTION, tool_choice="required")
    results = [{"role": "tool", "tool_call_id": call.id, "content": "It rains."} for call in said.message.tool_calls]
    check(said.message.tool_calls)
    answer = ask(sdk, QUESTION, said.message, *results, tool_choice="none", max_tokens=32)
    assert answer.finish_reason in ("stop", "length")
    assert not answer.message.tool_calls
    again = ask(sdk, QUESTION, said.message.model_dump(), *results, tool_choice="required")
    check(again.message.tool_calls)


def test_without_a_choice_the_answer_is_text_or_well_formed_calls(sdk: openai.OpenAI) -> None:
    question, expected = next(iter(TALK.items()))
    assert ask(sdk, {"role": "user", "content": question}, tool_choice="none").message.content == expected
    for seed in range(4):
        said = ask(sdk, QUESTION, temperature=1, seed=seed, max_tokens=100)
        if said.message.tool_calls:
            assert said.finish_reason == "tool_calls"
            check(said.message.tool_calls)
        else:
            assert said.message.content


def test_calls_that_are_cut_off_end_by_length(sdk: openai.OpenAI) -> None:
    said = ask(sdk, QUESTION, tool_choice=NAMED, max_tokens=60)
    assert said.finish_reason == "length"
    (call,) = said.message.tool_calls
    assert re.match(r'{"place": ?"', call.function.arguments)


@pytest.fixture(scope="module")
def thinker(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a model whose prompts leave reasoning open; with random weights it ends when it happens to."""
    folder = tmp_path_factory.mktemp("thinker")
    with (
        Service("language", folder, model=checkpoint("kimi_k25")) as language,
        openai.OpenAI(base_url=f"{language.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_reasoning_is_told_apart(thinker: openai.OpenAI) -> None:
    model = thinker.models.list().data[0].id
    wanted: Any = {"model": model, "messages": [QUESTION], "max_tokens": 600, "temperature": 2, "seed": 1, "n": 4}
    answers = thinker.chat.completions.create(**wanted, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    ended = [choice for choice in answers.choices if choice.finish_reason == "stop"]
    assert ended
    for choice in answers.choices:
        assert choice.message.reasoning_content  # type: ignore[attr-defined]
        assert "</think>" not in choice.message.reasoning_content  # type: ignore[attr-defined]
        assert choice.message.content in (("yes", "no") if choice in ended else ("", None))
    details = answers.usage.completion_tokens_details if answers.usage else None
    assert details is not None
    assert details.reasoning_tokens is not None
    assert details.reasoning_tokens > 0


def test_streamed_reasoning_is_the_same(thinker: openai.OpenAI) -> None:
    model = thinker.models.list().data[0].id
    wanted: Any = {"model": model, "messages": [QUESTION], "max_tokens": 600, "temperature": 2, "seed": 1}
    whole = thinker.chat.completions.create(**wanted).choices[0].message
    deltas = [chunk.choices[0].delta for chunk in thinker.chat.completions.create(**wanted, stream=True) if chunk.choices]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == whole.reasoning_content  # type: ignore[attr-defined]
    assert "".join(delta.content or "" for delta in deltas) == (whole.content or "")


def test_reasoning_that_the_last_message_began_goes_on(thinker: openai.OpenAI) -> None:
    model = thinker.models.list().data[0].id
    begun = {"role": "assistant", "content": "<think>The weather"}
    wanted: Any = {"model": model, "max_tokens": 20, "temperature": 0, "extra_body": {"continue_final_message": True}}
    choice = thinker.chat.completions.create(messages=[QUESTION, begun], **wanted).choices[0]
    assert choice.message.reasoning_content  # type: ignore[attr-defined]
    assert choice.finish_reason == "length"
    assert choice.message.content == ""
