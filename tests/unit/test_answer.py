"""Answers as clients get them: whole and streamed, with calls, reasoning, usage and times; and silence in a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from services.language.api.answer import Answer, calls_of
from services.language.api.ask import Caller, ask_of
from services.language.api.routes import parse
from services.language.api.sse import COMMENT, DONE, EventStream
from services.language.completion import Completion
from services.language.deadline import Deadline
from services.language.engine.interface import EngineRequest, Prompt, Sampling, Span, Step
from services.language.models.generic import Positions
from services.language.output.format import CallDelta, Parts
from services.language.prompt.detokenizer import Detokenizer, StopStrings
from services.language.request import ChatRequest
from services.language.timeline import ItemTime
from shared.identity import MediaItem

END = 9


class Letters:
    """A tokenizer of ten letters."""

    is_fast = False

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)


class Told:
    """A stream of steps that are given, ``queued`` seconds late."""

    def __init__(self, tokens: Sequence[int], reason: str, queued: float = 0.0) -> None:
        self._steps = [
            Step(token, reason if at == len(tokens) - 1 else None, None, 3 if at == 0 else 0, queued if at == 0 else 0.0)  # type: ignore[arg-type]
            for at, token in enumerate(tokens)
        ]

    def submit(self, request: EngineRequest) -> Told:
        return self

    def __aiter__(self) -> Told:
        return self

    async def __anext__(self) -> Step:
        if not self._steps:
            raise StopAsyncIteration
        return self._steps.pop(0)

    async def aclose(self) -> None:
        pass


class Vowels:
    """A reader to which ``a`` is reasoning and ``e`` a call."""

    def __init__(self) -> None:
        self.thinking = True
        self.called = False

    def push(self, text: str) -> Parts:
        self.called = self.called or "e" in text
        self.thinking = not text or text[-1] == "a"
        calls = tuple(CallDelta(0, "call_0", "look", '{"at":') for letter in text if letter == "e")
        content = text.replace("a", "").replace("e", "")
        return Parts(content, "a" * text.count("a"), calls)

    def flush(self) -> Parts:
        return Parts(calls=(CallDelta(0, arguments="1}"),)) if self.called else Parts()


class Service:
    """A chat service that answers each request with what it is given."""

    context_length = 100
    tokenizer = Letters()
    fingerprint = "fp_test"

    def __init__(self, *engines: Told, reader: bool = False, stops: Sequence[str] = (), spans: tuple[Span, ...] = ()) -> None:
        prompt = Prompt([0] * 5, Positions(torch.arange(5)[None], 5), spans)
        sampling = Sampling(10, stop_token_ids=frozenset({END}))
        self.completions = [
            Completion(
                engine,  # type: ignore[arg-type]
                EngineRequest("r", prompt, sampling),
                Detokenizer(self.tokenizer),
                StopStrings(stops),
                Vowels() if reader else None,  # type: ignore[arg-type]
            )
            for engine in engines
        ]

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def start(self, request: ChatRequest) -> list[Completion]:
        request.timeline.stages["tokenize"] = 0.5
        request.timeline.items = [ItemTime(0, "image", 2, "computed", "encoder-1", {"tower": 0.25}, 0.125)]
        return self.completions


def asked(service: Service, **fields: Any) -> tuple[Answer, ChatRequest]:
    raw = json.dumps({"messages": [{"role": "user", "content": "x"}]} | fields).encode()
    body = parse(raw, "demo", 100)
    return Answer(service, "demo", body, {}, 15.0), ask_of(body, Caller("r", Deadline(9), {}, ""))  # type: ignore[arg-type]


async def whole(service: Service, **fields: Any) -> dict[str, Any]:
    answer, call = asked(service, **fields)
    found: dict[str, Any] = json.loads((await answer.whole(call)).body)
    return found


async def streamed(service: Service, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, which must end as streams end."""
    answer, call = asked(service, stream=True, **fields)
    response = await answer.stream(call)
    chunks = [chunk async for chunk in response.body_iterator]  # type: ignore[attr-defined]
    assert chunks[-1] == DONE
    return [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks[:-1]]


async def test_a_whole_answer_has_openais_fields() -> None:
    found = await whole(Service(Told([1, 2, END], "stop")))
    assert found["id"].startswith("chatcmpl-")
    assert {key: found[key] for key in found.keys() - {"id", "created"}} == {
        "object": "chat.completion",
        "model": "demo",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "bc", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 3, "image_tokens": 0, "video_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_calls_and_reasoning_are_parts_of_a_message() -> None:
    found = await whole(Service(Told([0, 0, 4, END], "stop"), reader=True))
    [choice] = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "aa",
        "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}],
    }
    # The one before the first letter, and the two that are reasoning.
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


async def test_a_stream_brings_the_same_in_parts() -> None:
    events = await streamed(Service(Told([0, 1, 4, END], "stop"), reader=True))
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "a"},
        {"content": "b"},
        {"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": {"name": "look", "arguments": '{"at":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 5 + ["tool_calls"]
    assert {event["system_fingerprint"] for event in events} == {"fp_test"}


async def test_reasoning_may_be_left_out() -> None:
    found = await whole(Service(Told([0, 1, END], "stop"), reader=True), include_reasoning=False)
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "b", "refusal": None}
    events = await streamed(Service(Told([0, 1, END], "stop"), reader=True), include_reasoning=False)
    assert [event["choices"][0]["delta"] for event in events] == [{"role": "assistant", "content": ""}, {"content": "b"}, {}]


@pytest.mark.parametrize("reader", [False, True])
async def test_every_step_is_told_once_where_tokens_are_asked_for(reader: bool) -> None:
    tokens = [0, 1, 4, 2, END]
    events = await streamed(Service(Told(tokens, "stop"), reader=reader), return_token_ids=True)
    told = [token for event in events for token in event["choices"][0].get("token_ids") or []]
    assert told == tokens


async def test_an_answer_that_is_cut_off_says_so_also_in_the_middle_of_a_call() -> None:
    found = await whole(Service(Told([4, 1], "length"), reader=True))
    assert found["choices"][0]["finish_reason"] == "length"


async def test_usage_counts_media_by_kind() -> None:
    spans = (Span(1, MediaItem("image", 2), 0, 2), Span(3, MediaItem("audio", 1), 0, 1))
    found = await whole(Service(Told([END], "stop"), spans=spans))
    details = {"cached_tokens": 3, "image_tokens": 2, "video_tokens": 0, "audio_tokens": 1}
    assert found["usage"]["prompt_tokens_details"] == details


async def test_times_are_told_where_they_are_asked_for() -> None:
    items = [
        {
            "index": 0,
            "modality": "image",
            "tokens": 2,
            "source": "computed",
            "encoder_id": "encoder-1",
            "timings": {"tower": 0.25},
            "wire": 0.125,
        }
    ]
    timings = (await whole(Service(Told([1, END], "stop", queued=0.5)), return_timings=True))["timings"]
    assert list(timings["stages"]) == ["tokenize", "queue", "prefill", "decode"]
    assert (timings["stages"]["tokenize"], timings["stages"]["queue"], timings["items"]) == (0.5, 0.5, items)
    events = await streamed(Service(Told([1, END], "stop")), return_timings=True)
    assert events[-1]["choices"] == []
    assert events[-1]["timings"]["items"] == items
    assert not any("timings" in event or "usage" in event for event in events[:-1])


async def test_the_last_event_has_the_usage_and_all_others_have_it_empty() -> None:
    events = await streamed(Service(Told([1, 2, END], "stop")), stream_options={"include_usage": True})
    assert [event["usage"] is None for event in events] == [True] * (len(events) - 1) + [False]
    assert events[-1]["usage"]["completion_tokens"] == 3


def test_calls_are_put_together_from_their_parts() -> None:
    parts = [CallDelta(0, "a", "f", "{"), CallDelta(1, "b", "g"), CallDelta(0, arguments="}"), CallDelta(1, arguments="{}")]
    assert [(call.id, call.function.name, call.function.arguments) for call in calls_of(parts)] == [
        ("a", "f", "{}"),
        ("b", "g", "{}"),
    ]


async def test_a_silent_stream_sends_comments_and_a_busy_one_none() -> None:
    sent: list[bytes] = []
    commented = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"
        await commented.wait()
        yield DONE

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            if message["body"] == COMMENT:
                commented.set()

    async with asyncio.timeout(10):
        await EventStream(events(), 0.02).stream_response(send)
    assert sent[:3] == [b"data: 1\n\n", b"data: 2\n\n", COMMENT]
    assert sent[-2:] == [DONE, b""]
