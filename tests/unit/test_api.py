"""The API's schema: what is taken, what is refused, and what it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import Request

from services.language.api.ask import Caller, ask_of, tenant_of
from services.language.api.responses import ChatCompletionChunk, ChunkChoice, Delta
from services.language.api.routes import parse
from services.language.api.schemas import ChatCompletionRequest
from services.language.api.sse import event
from services.language.deadline import Deadline
from services.language.output.format import AnswerFormat, Tool, ToolChoice
from services.language.request import ChatRequest
from shared.errors import ClientError, InvalidRequest, ModelNotFound

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def parsed(**fields: Any) -> Any:
    return parse(json.dumps(HELLO | fields).encode(), "demo", 100_000)


def asked(body: ChatCompletionRequest, tenant: str = "") -> ChatRequest:
    return ask_of(body, Caller("r", Deadline(1.0), {}, tenant))


def test_pictures_keep_their_order_and_place() -> None:
    body = parsed(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "image_url", "image_url": "https://a/1.png"},
                {"type": "image_url", "image_url": {"url": "https://a/2.png", "detail": "low"}},
                {"type": "text", "text": "Compare."},
            ]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "image_url", "image_url": "https://a/3.png"}]},
        ]
    )  # fmt: skip
    ask = asked(body)
    assert [(source.index, source.url, source.param) for source in ask.conversation.media] == [
        (0, "https://a/1.png", "messages.1.content.0.image_url"),
        (1, "https://a/2.png", "messages.1.content.1.image_url"),
        (2, "https://a/3.png", "messages.3.content.1.image_url"),
    ]
    assert [message["role"] for message in ask.conversation.messages] == ["system", "user", "assistant", "user"]
    assert list(ask.conversation.texts()) == ["Be brief.", "Compare.", "", "And"]


def test_videos_and_sounds_are_items_like_pictures() -> None:
    body = parsed(
        messages=[{"role": "user", "content": [
            {"type": "video_url", "video_url": {"url": " https://a/1.mp4\n"}},
            {"type": "text", "text": "And"},
            {"type": "audio_url", "audio_url": "https://a/2.wav"},
            {"type": "image_url", "image_url": {"url": "https://a/3.png", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": "data:audio/mp3;base64,SUQz"}},
        ]}]
    )  # fmt: skip
    ask = asked(body)
    assert [(source.index, source.modality, source.url, source.param) for source in ask.conversation.media] == [
        (0, "video", "https://a/1.mp4", "messages.0.content.0.video_url"),
        (1, "audio", "https://a/2.wav", "messages.0.content.2.audio_url"),
        (2, "image", "https://a/3.png", "messages.0.content.3.image_url"),
        (3, "audio", "data:;base64,UklGRg==", "messages.0.content.4.input_audio"),
        (4, "audio", "data:audio/mp3;base64,SUQz", "messages.0.content.5.input_audio"),
    ]
    content = ask.conversation.messages[0]["content"]
    assert [part["type"] for part in content] == ["video", "text", "audio", "image", "audio", "audio"]


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": [1]}'}}


PICTURES = [{"type": "image_url", "image_url": f"https://a/{number}.png"} for number in range(2)]
SHOWN = {"messages": [{"role": "user", "content": PICTURES}]}


def test_tokens_may_stand_for_the_messages() -> None:
    alone = asked(parse(b'{"prompt_token_ids": [1, 2, 3]}', "demo", 100_000))
    assert (alone.prompt_token_ids, alone.conversation.messages, alone.conversation.media) == ([1, 2, 3], [], ())
    beside = asked(parsed(**SHOWN, prompt_token_ids=[5]))
    assert (beside.prompt_token_ids, len(beside.conversation.media)) == ([5], 2)
    assert asked(parsed(prompt_token_ids=None)).prompt_token_ids is None


def test_both_names_of_the_token_limit_and_nulls() -> None:
    assert parsed(max_tokens=5).token_limit == 5
    assert parsed(max_tokens=5, max_completion_tokens=7).token_limit == 7
    assert parsed(max_tokens=None, temperature=None, stop=None, n=None, tools=None).token_limit is None
    assert parsed(stop="END").stop == ["END"]


def test_a_hash_for_each_picture() -> None:
    ask = asked(parsed(**SHOWN, mm_hashes=["a", None]), "bearer me")
    assert (list(ask.mm_hashes), ask.tenant) == (["a", None], "bearer me")
    assert "bearer me" not in repr(ask)
    assert list(asked(parsed(**SHOWN)).mm_hashes) == []
    assert list(asked(parsed(mm_hashes=[])).mm_hashes) == []


def test_another_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="'other' is not served here; 'demo' is") as caught:
        parsed(model="other")
    assert caught.value.param == "model"


def test_tools_calls_and_results_become_what_templates_read() -> None:
    body = parsed(
        messages=[
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "I should look."},
            {"role": "tool", "tool_call_id": "call_1", "content": "a cat"},
        ],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "look"}},
        parallel_tool_calls=False,
        reasoning_effort="none",
        chat_template_kwargs={"enable_thinking": True},
    )
    request = asked(body)
    assert request.conversation.messages == [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I should look.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {"at": [1]}}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a cat"},
    ]
    assert request.conversation.tools == (Tool("look", None, {"type": "object"}),)
    assert request.tool_choice == ToolChoice("required", "look", parallel=False)
    # What the caller says of a template's variables goes before what the effort means for them.
    assert request.conversation.kwargs == {"reasoning_effort": "none", "enable_thinking": True, "thinking": False}


def test_with_tool_choice_none_the_model_does_not_hear_of_tools() -> None:
    assert asked(parsed(tools=[TOOL], tool_choice="none")).conversation.tools == ()


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, AnswerFormat("json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
            AnswerFormat("json_schema", {"type": "null"}, "response_format.json_schema.schema"),
        ),
        (
            {"structured_outputs": {"json": '{"type": "null"}'}},
            AnswerFormat("json_schema", {"type": "null"}, "structured_outputs.json"),
        ),
        ({"structured_outputs": {"json": True}}, AnswerFormat("json_schema", True, "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a+"}}, AnswerFormat("regex", "a+", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, AnswerFormat("choice", ["a", "b"], "structured_outputs.choice")),
        ({"structured_outputs": {"grammar": "start: A"}}, AnswerFormat("grammar", "start: A", "structured_outputs.grammar")),
        ({"structured_outputs": {"json_object": True}}, AnswerFormat("json_object", None, "structured_outputs.json_object")),
    ],
)  # fmt: skip
def test_forms_of_answers(fields: dict[str, Any], wanted: AnswerFormat | None) -> None:
    assert asked(parsed(**fields)).answer_format == wanted


def test_what_templates_end_a_prompt_with() -> None:
    ends = [
        (request.conversation.add_generation_prompt, request.conversation.continue_final_message)
        for request in map(asked, (parsed(), parsed(add_generation_prompt=False), parsed(continue_final_message=True)))
    ]
    assert ends == [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize("hashes", [[], ["a"], ["a", None, "c"]])
def test_other_than_one_hash_for_each_picture_is_refused_by_both_counts(hashes: list[str | None]) -> None:
    with pytest.raises(InvalidRequest, match=f"{len(hashes)} entries.* 2 media items") as caught:
        asked(parsed(**SHOWN, mm_hashes=hashes))
    assert caught.value.param == "mm_hashes"


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        (None, ""),
        ("", ""),
        ("Bearer key", "bearer key"),
        ("bearer  key ", "bearer key"),
        ("Bearer Key", "bearer Key"),
        ("key", "key"),
    ],
)
def test_a_tenant_is_whoever_has_its_credentials(header: str | None, tenant: str) -> None:
    headers = [] if header is None else [(b"authorization", header.encode())]
    assert tenant_of(Request({"type": "http", "headers": headers})) == tenant


def test_unknown_fields_are_ignored() -> None:
    assert parsed(user="me", metadata={"a": "b"}, store=True, surprise=1).stream is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": [1, -1]}, "prompt_token_ids.1"),
        ({"prompt_token_ids": "text"}, "prompt_token_ids"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "pilot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        (
            {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": "https://a"}]}]},
            "messages.0.content",
        ),
        (
            {"messages": [{"role": "system", "content": [{"type": "video_url", "video_url": "https://a"}]}]},
            "messages.0.content",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "audio_url", "audio_url": "  "}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages.0.content"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 99}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"5": 200}}, "logit_bias.5"),
        ({"mm_hashes": "abc"}, "mm_hashes"),
        ({"mm_hashes": ["abc", 7]}, "mm_hashes.1"),
        ({"frequency_penalty": 5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "poem"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages.0.tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "messages.0.tool_calls.0.function.arguments",
        ),
        ({"structured_outputs": {"grammar": "x" * (2**17 + 1)}}, "structured_outputs.grammar"),
        ({"guided_json": {}}, "guided_json"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    assert (caught.value.param or "").startswith(param or "")
    if param is None:
        assert next(iter(fields)) in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content", "valid string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a", "detail": "huge"}}]}]},
            "messages.0.content.0.image_url.image_url.detail",
            "'low'",
        ),
        ({"tool_choice": "maybe"}, "tool_choice", "'required'"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "required"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not JSON"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json", "valid string"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "{}"}}},
            "response_format.json_schema.schema",
            "object",
        ),
    ],
)
def test_what_may_have_several_forms_is_wrong_in_one(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        parsed(**fields)
    assert caught.value.param == param
    assert "more)" not in caught.value.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (r'{"a": "\ud800"}', "not JSON"),
        ('{"a": NaN}', "not JSON"),
        ('{"a": ' + "[" * 10_000, "not JSON"),
        ('{"a": [' + "[]," * 50_000 + "1]}", "50000 values"),
    ],
)
def test_arguments_are_read_as_carefully_as_the_body_around_them(arguments: str, words: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(InvalidRequest, match=words) as caught:
        parsed(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert caught.value.param == "messages.0.tool_calls.0.function.arguments"


@pytest.mark.parametrize("fields", [{"logit_bias": {"k" * 10**6: 1}}, {"model": "m" * 10**6}])
def test_what_is_wrong_is_not_quoted_without_end(fields: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as caught:
        parsed(**fields)
    assert len(f"{caught.value}{caught.value.message}{caught.value.param}") < 10_000


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff", b'{"messages": "hi"}', b'{"messages": NaN}'])
def test_bodies_that_are_no_request_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(raw, "demo", 100_000)


def test_chunks_have_openais_shape() -> None:
    chunk = ChatCompletionChunk(id="c", created=1, model="m", choices=[ChunkChoice(delta=Delta(content="x"))])
    framed = event(chunk, exclude={"usage"})
    assert framed.startswith(b"data: {")
    assert framed.endswith(b"}\n\n")
    assert json.loads(framed[6:])["choices"] == [
        {"index": 0, "delta": {"content": "x"}, "finish_reason": None, "logprobs": None}
    ]


def test_a_long_prompt_of_tokens_is_not_too_many_values_and_one_beyond_the_context_is_not_parsed() -> None:
    raw = json.dumps({"prompt_token_ids": [7] * 60_000}).encode()
    assert len(parse(raw, "demo", 60_000).prompt_token_ids or ()) == 60_000
    with pytest.raises(InvalidRequest, match="60000 tokens; the model's context has 59999"):
        parse(raw, "demo", 59_999)
    elsewhere = json.dumps({"prompt_token_ids": [7], "messages": [7] * 60_000}).encode()
    with pytest.raises(InvalidRequest, match="more than 50000 values"):
        parse(elsewhere, "demo", 60_000)
