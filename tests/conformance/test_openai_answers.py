"""Whole answers through the official client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.chats import MODEL
from tests.conformance.questions import ANSWER, HELLO, PLAIN, WEATHER, Colour, Shape, about


def test_a_picture_in_the_request_is_described(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(messages=about(), **PLAIN)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.id.startswith("chatcmpl-")


def test_a_picture_at_a_url_is_described(sdk: openai.OpenAI, picture_url: str) -> None:
    answer = sdk.chat.completions.create(messages=about(picture_url), **PLAIN)
    assert answer.choices[0].message.content == ANSWER


def test_usage_adds_up_and_tells_the_pictures_tokens(sdk: openai.OpenAI) -> None:
    with_picture = sdk.chat.completions.create(messages=about(), **PLAIN).usage
    assert with_picture is not None
    assert with_picture.total_tokens == with_picture.prompt_tokens + with_picture.completion_tokens
    details = with_picture.to_dict()["prompt_tokens_details"]
    assert isinstance(details, dict)
    assert 0 < details["image_tokens"] < with_picture.prompt_tokens
    assert details["audio_tokens"] == details["video_tokens"] == 0


def test_a_prompt_that_comes_again_has_cached_tokens(sdk: openai.OpenAI) -> None:
    messages: Any = [{"role": "system", "content": "Cached. " * 40}, *HELLO]
    sdk.chat.completions.create(messages=messages, max_tokens=2, **PLAIN)
    usage = sdk.chat.completions.create(messages=messages, max_tokens=2, **PLAIN).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens
    assert 0 < usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


def test_the_pair_has_one_fingerprint(sdk: openai.OpenAI) -> None:
    seen = {sdk.chat.completions.create(messages=HELLO, **PLAIN).system_fingerprint for _ in range(2)}
    assert len(seen) == 1
    assert seen != {None}


def test_every_role_is_understood(sdk: openai.OpenAI) -> None:
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be exact."}]},
        {"role": "user", "name": "ann", "content": "What is the weather?"},
        {"role": "assistant", "content": None, "tool_calls": [_call("call-1")]},
        {"role": "tool", "tool_call_id": "call-1", "content": '{"degrees": 21}'},
        {"role": "assistant", "content": "It is warm."},
        {"role": "user", "content": [{"type": "text", "text": "Thanks"}]},
    ]
    assert sdk.chat.completions.create(messages=messages, max_completion_tokens=8, **PLAIN).choices[0].finish_reason


def _call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}


def test_several_answers_have_their_numbers(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=6, temperature=1.5, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_a_seed_gives_the_same_answer_again(sdk: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Once upon a time"}]
    asked: Any = {"model": MODEL, "messages": messages, "temperature": 2, "max_tokens": 12}
    texts = [sdk.chat.completions.create(seed=seed, **asked).choices[0].message.content for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("stop", [" and", [" nothing", " and"]])
def test_a_stop_string_ends_the_answer_before_it(sdk: openai.OpenAI, stop: Any) -> None:
    choice = sdk.chat.completions.create(messages=about(), stop=stop, **PLAIN).choices[0]
    assert (choice.message.content, choice.finish_reason) == (ANSWER.split(" and")[0], "stop")


def test_a_token_limit_ends_the_answer_with_length(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(messages=about(), max_completion_tokens=3, **PLAIN)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_logprobs_are_those_of_the_answers_tokens(sdk: openai.OpenAI) -> None:
    choice = sdk.chat.completions.create(messages=about(), logprobs=True, top_logprobs=3, **PLAIN).choices[0]
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens
    assert "".join(token.token for token in tokens).startswith(ANSWER)
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token
        assert -1e-3 < token.top_logprobs[0].logprob - token.logprob < 1e-3 <= 1e-3 - token.logprob
        assert token.bytes == list(token.token.encode())


def test_logit_bias_forbids_a_token(sdk: openai.OpenAI) -> None:
    usual: Any = sdk.chat.completions.create(
        messages=HELLO, max_tokens=1, extra_body={"return_token_ids": True}, **PLAIN
    ).choices[0]
    token = usual.token_ids[0]
    other: Any = sdk.chat.completions.create(
        messages=HELLO, max_tokens=1, logit_bias={str(token): -100}, extra_body={"return_token_ids": True}, **PLAIN
    ).choices[0]
    assert other.token_ids[0] != token


def test_what_others_servers_take_besides_is_taken(sdk: openai.OpenAI) -> None:
    """OpenAI's fields that ask for nothing here, and vLLM's beyond OpenAI's."""
    answer = sdk.chat.completions.create(
        messages=about(),
        metadata={"a": "b"},
        user="ann",
        store=False,
        service_tier="auto",
        safety_identifier="ann",
        presence_penalty=0,
        extra_body={
            "top_k": 40,
            "min_p": 0.01,
            "repetition_penalty": 1.0,
            "chat_template_kwargs": {"enable_thinking": False},
            "mm_hashes": ["a-scene"],
            "a_field_of_tomorrow": 1,
        },
        **PLAIN,
    )
    assert answer.choices[0].message.content == ANSWER


def test_json_schema_binds_the_answer(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        messages=about(),
        response_format={"type": "json_schema", "json_schema": {"name": "shape", "schema": Shape.model_json_schema()}},
        max_tokens=64,
        **PLAIN,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert Shape.model_validate_json(answer.choices[0].message.content or "").colour in Colour


def test_json_object_is_an_object(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        messages=HELLO, response_format={"type": "json_object"}, max_tokens=200, model=MODEL, temperature=0
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")


def test_parse_gives_a_pydantic_object(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.parse(messages=about(), response_format=Shape, max_tokens=64, **PLAIN)
    assert isinstance(answer.choices[0].message.parsed, Shape)


def test_a_required_tool_is_called(sdk: openai.OpenAI) -> None:
    choice = sdk.chat.completions.create(
        messages=HELLO, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=100, **PLAIN
    ).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.id
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Paris", "Rome")
    assert arguments["unit"] in ("C", "F")


def test_a_tools_result_leads_to_an_answer(sdk: openai.OpenAI) -> None:
    messages: list[Any] = list(HELLO)
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    options: Any = {"tools": [WEATHER], "max_tokens": 100, **PLAIN}
    asked = sdk.chat.completions.create(messages=messages, tool_choice=named, **options).choices[0]
    assert asked.message.tool_calls
    messages.append(asked.message)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "21 degrees"} for call in asked.message.tool_calls]
    answer = sdk.chat.completions.create(messages=messages, tool_choice="none", **options)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert not answer.choices[0].message.tool_calls


async def test_many_async_requests_each_get_their_own_answer(async_sdk: openai.AsyncOpenAI) -> None:
    answers = await asyncio.gather(
        *(async_sdk.chat.completions.create(messages=about() if at % 2 else HELLO, **PLAIN) for at in range(8))
    )
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[1::2] == [ANSWER] * 4
    assert len(set(texts[::2])) == 1
    assert texts[0] != ANSWER
