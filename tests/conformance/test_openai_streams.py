"""Streamed answers through the official client."""

from __future__ import annotations

import json
from typing import Any

import openai

from tests.chats import MODEL
from tests.conformance.questions import ANSWER, HELLO, PLAIN, WEATHER, Shape, about


def test_the_pieces_are_the_answer(sdk: openai.OpenAI) -> None:
    chunks = list(sdk.chat.completions.create(messages=about(), stream=True, **PLAIN))
    assert {(chunk.object, chunk.model, chunk.id) for chunk in chunks} == {("chat.completion.chunk", MODEL, chunks[0].id)}
    assert len({chunk.system_fingerprint for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_usage_comes_last_where_it_is_asked_for(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(messages=about(), **PLAIN).usage
    chunks = list(sdk.chat.completions.create(messages=about(), stream=True, stream_options={"include_usage": True}, **PLAIN))
    assert whole is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.total_tokens
    unasked = list(sdk.chat.completions.create(messages=about(), stream=True, **PLAIN))
    assert all(chunk.usage is None and chunk.choices for chunk in unasked)


def test_several_answers_are_streamed_by_their_numbers(sdk: openai.OpenAI) -> None:
    texts: dict[int, str] = {}
    for chunk in sdk.chat.completions.create(messages=about(), n=2, stream=True, **PLAIN):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {0: ANSWER, 1: ANSWER}


def test_logprobs_are_streamed_with_their_tokens(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(messages=about(), logprobs=True, **PLAIN).choices[0].logprobs
    tokens: list[str] = []
    for chunk in sdk.chat.completions.create(messages=about(), logprobs=True, stream=True, **PLAIN):
        if chunk.choices[0].logprobs is not None:
            tokens += [token.token for token in chunk.choices[0].logprobs.content or []]
    assert whole is not None
    assert whole.content is not None
    assert tokens == [token.token for token in whole.content]


def test_the_stream_helper_puts_the_answer_together(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(messages=about(), **PLAIN) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)


def test_the_stream_helper_parses(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(messages=about(), response_format=Shape, max_tokens=64, **PLAIN) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Shape)


def test_a_tool_call_is_streamed_in_pieces(sdk: openai.OpenAI) -> None:
    options: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 100, **PLAIN}
    whole = sdk.chat.completions.create(messages=HELLO, **options).choices[0].message.tool_calls
    pieces = []
    reasons = []
    for chunk in sdk.chat.completions.create(messages=HELLO, stream=True, **options):
        pieces += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    first, *rest = pieces
    assert first.id
    assert first.function is not None
    assert first.function.name == "get_weather"
    assert all(piece.index == 0 and piece.id is None for piece in rest)
    arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function is not None)
    assert whole is not None
    assert json.loads(arguments) == json.loads(whole[0].function.arguments)  # type: ignore[union-attr]
    assert reasons[-1] == "tool_calls"


def test_the_stream_helper_puts_a_tool_call_together(sdk: openai.OpenAI) -> None:
    strict = WEATHER | {"function": WEATHER["function"] | {"strict": True}}
    with sdk.chat.completions.stream(
        messages=HELLO, tools=[strict], tool_choice="required", parallel_tool_calls=False, max_tokens=100, **PLAIN
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert len(done) == 1
    assert final.choices[0].message.tool_calls
    assert set(final.choices[0].message.tool_calls[0].function.parsed_arguments or {}) == {"city", "unit"}  # type: ignore[call-overload]


async def test_an_async_stream_can_be_left(async_sdk: openai.AsyncOpenAI) -> None:
    stream = await async_sdk.chat.completions.create(messages=about(), stream=True, **PLAIN)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    again = await async_sdk.chat.completions.create(messages=about(), **PLAIN)
    assert again.choices[0].message.content == ANSWER


async def test_an_async_stream_is_the_answer(async_sdk: openai.AsyncOpenAI) -> None:
    stream = await async_sdk.chat.completions.create(messages=about(), stream=True, **PLAIN)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER
