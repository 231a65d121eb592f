"""The older completions API: what is taken, what is asked of the pair, and what is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx
import pytest
import torch
from fastapi import FastAPI
from starlette.types import Message

from services.language.api.ask import Caller
from services.language.api.completions import COMPLETIONS_PATH, calls_of, install_completion_routes, start_all
from services.language.api.numbers import validate_numbers
from services.language.api.text_answer import Offsets
from services.language.api.text_request import CompletionRequest
from services.language.completion import Completion
from services.language.deadline import Deadline
from services.language.engine.interface import EngineRequest, Prompt, Step, TokenLogprobs
from services.language.models.generic import Positions
from services.language.output.format import AnswerFormat
from services.language.prompt.detokenizer import Detokenizer, StopStrings
from services.language.request import ChatRequest
from shared.errors import EngineOverloaded, InvalidRequest
from shared.http import install
from shared.lifecycle import Drain
from shared.telemetry import Metrics

CALLER = Caller("r", Deadline(9), {}, "")


def parsed(**fields: Any) -> CompletionRequest:
    return validate_numbers(json.dumps({"prompt": "ab"} | fields).encode(), CompletionRequest, "prompt", 1000)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", ["ab"]),
        (["ab"], ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2]], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: list[str | list[int]]) -> None:
    calls = calls_of(parsed(prompt=prompt), CALLER)
    assert [call.text if call.prompt_token_ids is None else call.prompt_token_ids for call in calls] == prompts
    assert all(call.plain and not call.conversation.messages for call in calls)


def test_what_is_left_out_is_openais_default_and_nulls_are_left_out() -> None:
    [call] = calls_of(parsed(max_tokens=None, logprobs=None, suffix=None, best_of=None, n=None, stop=None), CALLER)
    assert (call.max_tokens, call.answers, call.sampling.logprobs, call.answer_format) == (16, 1, None, None)
    assert call.special_tokens
    assert parsed(suffix="", best_of=1, surprise=1).n == 1
    assert parsed(best_of=2, n=2).n == 2


def test_fields_of_chats_mean_the_same_here() -> None:
    fields = {"stop": "c", "seed": 5, "top_k": 3, "ignore_eos": True, "include_stop_str_in_output": True, "logprobs": 4, "n": 2}
    [call] = calls_of(parsed(**fields, structured_outputs={"regex": "a+"}, add_special_tokens=False), CALLER)
    assert (call.stops, call.with_stop, call.ignore_eos, call.answers, call.special_tokens) == (["c"], True, True, 2, False)
    assert (call.sampling.seed, call.sampling.top_k, call.sampling.logprobs) == (5, 3, 4)
    assert call.answer_format == AnswerFormat("regex", "a+", "structured_outputs.regex")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt.1"),
        ({"prompt": [1, "a"]}, "prompt.1"),
        ({"prompt": ["a", 1]}, "prompt.1"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [[1]] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"prompt": [1] * 1001}, "prompt"),
        ({"prompt": [[1] * 10] * 100}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"suffix": "c"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    assert (caught.value.param or "").startswith(param)


def test_many_token_ids_are_not_too_many_values_but_others_beside_them_are() -> None:
    def validated(body: dict[str, Any]) -> CompletionRequest:
        return validate_numbers(json.dumps(body).encode(), CompletionRequest, "prompt", 200_000)

    assert len(validated({"prompt": [[7] * 60_000] * 2}).prompts()[1]) == 60_000
    for other in ({"prompt": "a", "x": [7] * 60_000}, {"prompt": ["a"] * 60_000}):
        with pytest.raises(InvalidRequest, match="more than 50000 values"):
            validated(other)


class Bytes:
    """A tokenizer of bytes, to which 255 is a special token."""

    is_fast = False

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        if not skip_special_tokens and list(token_ids) == [255]:
            return "<end>"
        return bytes(token for token in token_ids if token != 255).decode(errors="replace")


def test_a_token_begins_where_its_character_does() -> None:
    offsets = Offsets(Bytes())
    assert [offsets.next(token) for token in "aé€b".encode()] == [0, 1, 1, 2, 2, 2, 3]


class Answers:
    """An engine whose answer to every request is ``text``, one byte a step; then it breaks, if it is to. One that ``waits``
    gives nothing."""

    def __init__(self, text: bytes, breaks: bool = False, waits: bool = False, others: Sequence[int] = (122,)) -> None:
        last = len(text) - 1
        self._steps = [
            Step(
                byte,
                "stop" if at == last and not breaks else None,
                TokenLogprobs(-0.5, ((byte, -0.5), *((other, -2.0) for other in others))),
            )
            for at, byte in enumerate(text)
        ]
        self._breaks = breaks
        self._waits = waits
        self.asked = asyncio.Event()
        self.closed = False

    def submit(self, request: EngineRequest) -> Answers:
        return self

    def __aiter__(self) -> Answers:
        return self

    async def __anext__(self) -> Step:
        self.asked.set()
        if self._waits:
            await asyncio.Event().wait()
        if self._steps:
            return self._steps.pop(0)
        if self._breaks:
            raise EngineOverloaded("It broke.")
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed = True


class Service:
    """A chat service that has an engine for each completion, and refuses what it has none for."""

    context_length = 100
    tokenizer = Bytes()
    fingerprint = "fp_test"

    def __init__(self, *engines: Answers) -> None:
        self.engines = list(engines)
        self.calls: list[ChatRequest] = []

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def start(self, request: ChatRequest) -> list[Completion]:
        self.calls.append(request)
        if len(self.engines) < request.answers:
            raise InvalidRequest("It is too long.", param="messages")
        ids = list(request.prompt_token_ids or (request.text or "").encode())
        call = EngineRequest("r", Prompt(ids, Positions(torch.arange(len(ids))[None], len(ids))), request.sampling)
        taken, self.engines = self.engines[: request.answers], self.engines[request.answers :]
        return [
            Completion(engine, call, Detokenizer(self.tokenizer), StopStrings(request.stops))  # type: ignore[arg-type]
            for engine in taken
        ]

    async def detokenize(self, token_ids: Sequence[int], deadline: Deadline) -> str:
        return self.tokenizer.decode(token_ids)


def app_of(service: Service) -> FastAPI:
    app = FastAPI()
    install(app, Metrics(), 2**20, Drain(1.0, lambda: EngineOverloaded("ending")), work=(COMPLETIONS_PATH,))
    install_completion_routes(app, "demo", 10.0, 10.0, 15.0)
    app.state.chat = service
    return app


async def answered(service: Service, **fields: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app_of(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://language") as client:
        return await client.post(COMPLETIONS_PATH, json={"prompt": "ab"} | fields)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    *events, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_choices_are_in_the_order_of_prompts_and_counted_together() -> None:
    service = Service(*(Answers(text) for text in (b"one", b"two", b"three", b"four")))
    answer = (await answered(service, prompt=["ab", "c"], n=2, model="demo", echo=True)).json()
    assert (answer["object"], answer["model"], answer["system_fingerprint"]) == ("text_completion", "demo", "fp_test")
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in answer["choices"]] == [
        (0, "abone", "stop"),
        (1, "abtwo", "stop"),
        (2, "cthree", "stop"),
        (3, "cfour", "stop"),
    ]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 15, 18)
    assert not {"token_ids", "prompt_token_ids"} & answer["choices"][0].keys()


async def test_logprobs_have_the_older_shape() -> None:
    [choice] = (await answered(Service(Answers(b"hi\xff")), logprobs=2)).json()["choices"]
    assert choice["text"] == "hi"
    assert choice["logprobs"] == {
        "tokens": ["h", "i", "<end>"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"h": -0.5, "z": -2.0}, {"i": -0.5, "z": -2.0}, {"<end>": -0.5, "z": -2.0}],
        "text_offset": [0, 1, 2],
    }


async def test_of_tokens_that_look_alike_the_chosen_one_is_told_and_then_the_likelier() -> None:
    [choice] = (await answered(Service(Answers(b"\x80", others=(0x81, 122))), logprobs=3)).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"\ufffd": -0.5, "z": -2.0}]


async def test_a_stream_that_fails_before_the_first_token_gives_up_all_its_prompts() -> None:
    waiting = Answers(b"two", waits=True)
    response = await answered(Service(Answers(b"", breaks=True), waiting), prompt=["ab", "c"], stream=True)
    assert (response.status_code, waiting.closed) == (503, True)


async def test_a_stream_has_each_choices_text_in_order_its_echo_first_and_usage_last() -> None:
    fields = {"prompt": [[97], [98]], "echo": True, "stream": True, "stream_options": {"include_usage": True}}
    *events, last = events_of(await answered(Service(Answers(b"one"), Answers(b"two")), **fields))
    assert {(event["object"], event["usage"]) for event in events} == {("text_completion", None)}
    for index, text in enumerate(("aone", "btwo")):
        choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in choices) == text
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
    assert "usage" not in events_of(await answered(Service(Answers(b"x")), stream=True))[0]


async def test_a_streams_logprobs_and_ids_are_the_whole_answers() -> None:
    fields = {"logprobs": 1, "return_token_ids": True}
    [whole] = (await answered(Service(Answers("éh".encode())), **fields)).json()["choices"]
    events = events_of(await answered(Service(Answers("éh".encode())), stream=True, **fields))
    choices = [choice for event in events for choice in event["choices"]]
    assert (whole["token_ids"], whole["prompt_token_ids"]) == ([195, 169, 104], [97, 98])
    assert [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice] == [[97, 98]]
    assert [token for choice in choices for token in choice.get("token_ids", ())] == whole["token_ids"]
    for name, values in whole["logprobs"].items():
        assert [value for choice in choices if choice["logprobs"] for value in choice["logprobs"][name]] == values


@pytest.mark.parametrize("stream", [False, True])
async def test_one_prompt_that_is_refused_is_named_and_the_others_are_given_up(stream: bool) -> None:
    first = Answers(b"one")
    response = await answered(Service(first), prompt=["ab", "c"], stream=stream)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_request", "prompt.1")
    assert first.closed


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_before_the_first_token_is_a_status(stream: bool) -> None:
    response = await answered(Service(Answers(b"", breaks=True)), stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_overloaded")
    assert response.headers["retry-after"]


async def test_what_fails_later_ends_the_stream_with_the_error_and_without_done() -> None:
    response = await answered(Service(Answers(b"on", breaks=True)), stream=True)
    events = [json.loads(event.removeprefix("data: ")) for event in response.text.strip().split("\n\n")]
    assert "".join(choice["text"] for event in events[:-1] for choice in event["choices"]) == "on"
    assert events[-1]["error"]["code"] == "engine_overloaded"


async def test_a_client_that_leaves_takes_the_work_for_all_its_prompts_along() -> None:
    engines = [Answers(b"one", waits=True), Answers(b"two", waits=True)]
    app = app_of(Service(*engines))
    body = json.dumps({"prompt": ["ab", "c"]}).encode()

    async def receive() -> Message:
        if not body_sent.is_set():
            body_sent.set()
            return {"type": "http.request", "body": body}
        for engine in engines:
            await engine.asked.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError("somebody was answered")

    body_sent = asyncio.Event()
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS_PATH, "headers": [], "query_string": b""}
    await asyncio.wait_for(app(scope, receive, send), 5)
    assert [engine.closed for engine in engines] == [True, True]


async def test_another_model_is_not_found() -> None:
    response = await answered(Service(), model="other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_of_a_chats_names_for_a_prompt_none_is_told() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await start_all(Service(), calls_of(parsed(), CALLER))  # type: ignore[arg-type]
    assert caught.value.param == "prompt"
