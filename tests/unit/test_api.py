"""The API's schema: what is taken, what is refused, and what it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import Request

from services.language.api.routes import ask_of, parse, tenant_of
from services.language.api.schemas import ChatCompletionChunk, ChunkChoice, Delta
from services.language.api.sse import event
from services.language.deadline import Deadline
from shared.errors import InvalidRequest

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def parsed(**fields: Any) -> Any:
    return parse(json.dumps(HELLO | fields).encode(), "demo", 100_000)


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
    ask = ask_of(body, "r", Deadline(1.0), {})
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
    ask = ask_of(body, "r", Deadline(1.0), {})
    assert [(source.index, source.modality, source.url, source.param) for source in ask.conversation.media] == [
        (0, "video", "https://a/1.mp4", "messages.0.content.0.video_url"),
        (1, "audio", "https://a/2.wav", "messages.0.content.2.audio_url"),
        (2, "image", "https://a/3.png", "messages.0.content.3.image_url"),
        (3, "audio", "data:;base64,UklGRg==", "messages.0.content.4.input_audio"),
        (4, "audio", "data:audio/mp3;base64,SUQz", "messages.0.content.5.input_audio"),
    ]
    content = ask.conversation.messages[0]["content"]
    assert [part["type"] for part in content] == ["video", "text", "audio", "image", "audio", "audio"]


PICTURES = [{"type": "image_url", "image_url": f"https://a/{number}.png"} for number in range(2)]
SHOWN = {"messages": [{"role": "user", "content": PICTURES}]}


def test_tokens_may_stand_for_the_messages() -> None:
    alone = ask_of(parse(b'{"prompt_token_ids": [1, 2, 3]}', "demo", 100_000), "r", Deadline(1.0), {})
    assert (alone.prompt_token_ids, alone.conversation.messages, alone.conversation.media) == ([1, 2, 3], [], ())
    beside = ask_of(parsed(**SHOWN, prompt_token_ids=[5]), "r", Deadline(1.0), {})
    assert (beside.prompt_token_ids, len(beside.conversation.media)) == ([5], 2)
    assert ask_of(parsed(prompt_token_ids=None), "r", Deadline(1.0), {}).prompt_token_ids is None


def test_both_names_of_the_token_limit_and_nulls() -> None:
    assert parsed(max_tokens=5).token_limit == 5
    assert parsed(max_tokens=5, max_completion_tokens=7).token_limit == 7
    assert parsed(max_tokens=None, temperature=None, stop=None, n=None, tools=None).token_limit is None
    assert parsed(stop="END").stop == ["END"]


def test_a_hash_for_each_picture() -> None:
    ask = ask_of(parsed(**SHOWN, mm_hashes=["a", None]), "r", Deadline(1.0), {}, "bearer me")
    assert (list(ask.mm_hashes), ask.tenant) == (["a", None], "bearer me")
    assert "bearer me" not in repr(ask)
    assert list(ask_of(parsed(**SHOWN), "r", Deadline(1.0), {}).mm_hashes) == []
    assert list(ask_of(parsed(mm_hashes=[]), "r", Deadline(1.0), {}).mm_hashes) == []


@pytest.mark.parametrize("hashes", [[], ["a"], ["a", None, "c"]])
def test_other_than_one_hash_for_each_picture_is_refused_by_both_counts(hashes: list[str | None]) -> None:
    with pytest.raises(InvalidRequest, match=f"{len(hashes)} entries.* 2 media items") as caught:
        ask_of(parsed(**SHOWN, mm_hashes=hashes), "r", Deadline(1.0), {})
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
        ({"messages": [{"role": "user"}]}, "messages.0"),
        ({"messages": [{"role": "pilot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": "https://a"}]}]}, "messages.0"),
        ({"messages": [{"role": "system", "content": [{"type": "video_url", "video_url": "https://a"}]}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "audio_url", "audio_url": "  "}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages.0.content"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"model": "other"}, "model"),
        ({"n": 0}, "n"),
        ({"n": 99}, "n"),
        ({"top_logprobs": 3}, None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"5": 200}}, "logit_bias.5"),
        ({"mm_hashes": "abc"}, "mm_hashes"),
        ({"mm_hashes": ["abc", 7]}, "mm_hashes.1"),
        ({"frequency_penalty": 5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"tools": [{"type": "function"}]}, None),
        ({"response_format": {"type": "json_object"}}, None),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    assert (caught.value.param or "").startswith(param or "")
    if param is None:
        assert next(iter(fields)) in caught.value.message


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
