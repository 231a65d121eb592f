"""Failures through the official client: each is the exception that its users catch, with the code to act upon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from tests.chats import data_url, encoded
from tests.conformance.questions import ANSWER, HELLO, PLAIN, about
from tests.processes import Service

KEY = "sk-of-a-test"


def code_of(error: openai.APIStatusError) -> str:
    """The code in the body, which is OpenAI's error object."""
    body: Any = error.body
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"]
    assert body["code"] == error.code
    assert body["type"] == error.type
    return str(body["code"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "Kneel"}]}, "messages.0.role"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"n": 1000}, "n"),
        ({"stream_options": 7}, "stream_options"),
        ({"messages": [{"role": "user", "content": "word " * 100_000}]}, "messages"),
        ({"extra_body": {"guided_regex": "a+"}}, "guided_regex"),
        ({"extra_body": {"stop_token_ids": [2**31 - 1], "min_tokens": 2}}, "stop_token_ids"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_request_is_a_bad_request_that_names_the_field(
    sdk: openai.OpenAI, fields: dict[str, Any], param: str | None, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(**({"messages": HELLO, "model": PLAIN["model"], "stream": stream} | fields))
    assert code_of(caught.value) == "invalid_request"
    assert caught.value.param == param


@pytest.mark.parametrize("url", [data_url(b"no picture"), "data:image/png;base64,###", "http://127.0.0.1:9/none.png"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_picture_is_a_bad_request_that_names_the_part(sdk: openai.OpenAI, url: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(messages=about(url), stream=stream, **PLAIN)
    assert code_of(caught.value) == "invalid_media"
    assert caught.value.param == "messages.0.content.0.image_url"


def test_another_model_is_not_found(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(messages=HELLO, model="gpt-4o")
    assert (code_of(caught.value), caught.value.param) == ("model_not_found", "model")


def test_an_unknown_path_is_not_found(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        sdk.embeddings.create(model=PLAIN["model"], input="text")


def test_errors_carry_the_request_id(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(messages=[], extra_headers={"x-request-id": "mine-7"}, **PLAIN)
    assert caught.value.request_id == "mine-7"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    """An encoder and a language service that asks for a key."""
    folder = tmp_path_factory.mktemp("guarded")
    with (
        Service("encoder", folder).start(wait=False) as encoder,
        Service("language", folder, encoders=encoder.url, api_key=f"another,{KEY}").start(wait=False) as language,
    ):
        language.wait_until_ready(encoders=1)
        yield encoder, language


def client_of(language: Service, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{language.url}/v1", api_key=key, max_retries=0, timeout=60)


def test_a_wrong_key_is_an_authentication_error(guarded: tuple[Service, Service]) -> None:
    with client_of(guarded[1], "sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(messages=HELLO, **PLAIN)
        assert code_of(caught.value) == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_the_right_key_is_served(guarded: tuple[Service, Service]) -> None:
    with client_of(guarded[1], KEY) as client:
        assert client.chat.completions.create(messages=HELLO, max_tokens=2, **PLAIN).choices


@pytest.mark.parametrize("stream", [False, True])
def test_a_killed_encoder_is_an_internal_server_error_with_503_and_a_code(
    guarded: tuple[Service, Service], stream: bool
) -> None:
    encoder, language = guarded
    with client_of(language, KEY) as client:
        if encoder.process.poll() is None:
            assert client.chat.completions.create(messages=about(), **PLAIN).choices[0].message.content == ANSWER
            encoder.kill()
        # Another picture: what was answered before is known without an encoder.
        other = data_url(encoded(Image.new("RGB", (64, 64), ("grey", "olive")[stream])))
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(messages=about(other), stream=stream, **PLAIN)
        assert caught.value.status_code == 503
        assert code_of(caught.value) in ("encoder_failed", "encoder_lost", "encoder_unavailable")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert client.chat.completions.create(messages=HELLO, max_tokens=2, **PLAIN).choices
