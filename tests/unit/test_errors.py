"""The failure table is what the contract says, and media errors stay the client's."""

from __future__ import annotations

import pytest

from shared.errors import (
    ERRORS,
    ClientError,
    EncoderFailed,
    InternalError,
    InvalidMedia,
    InvalidRequest,
    Unavailable,
    body_of,
    from_body,
    from_exception,
    headers_of,
    media_errors,
)

TABLE = {
    "invalid_request": 400,
    "invalid_media": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "encoder_unavailable": 503,
    "encoder_failed": 503,
    "encoder_lost": 503,
    "encoder_overloaded": 503,
    "embedding_timeout": 503,
    "embedding_incomplete": 503,
    "embedding_corrupt": 503,
    "embedding_incompatible": 503,
    "engine_overloaded": 503,
    "internal_error": 500,
}


def test_codes_and_statuses_are_the_contract() -> None:
    assert {code: cls.status for code, cls in ERRORS.items()} == TABLE


@pytest.mark.parametrize("code", TABLE)
def test_bodies_make_the_round_trip(code: str) -> None:
    sent = ERRORS[code]("what happened", param="messages.0")
    body = body_of(sent)
    assert (body.error.code, body.error.message, body.error.param) == (code, "what happened", "messages.0")
    received = from_body(body.model_dump_json().encode())
    assert received is not None
    assert (type(received), received.message, received.param) == (type(sent), sent.message, sent.param)


@pytest.mark.parametrize("code", [code for code, status in TABLE.items() if status == 503])
def test_every_503_says_when_to_come_back(code: str) -> None:
    error = ERRORS[code]("busy")
    assert isinstance(error, Unavailable)
    assert headers_of(error) == {"Retry-After": "1"}
    assert headers_of(ERRORS[code]("busy", retry_after=2.2)) == {"Retry-After": "3"}


def test_client_errors_are_value_errors_without_retry() -> None:
    for cls in (InvalidRequest, InvalidMedia):
        assert issubclass(cls, ClientError)
        assert issubclass(cls, ValueError)
        assert headers_of(cls("no")) == {}


@pytest.mark.parametrize("content", [b"", b"<html>", b"{}", b'{"error": {"message": "m", "type": "t", "code": "strange"}}'])
def test_foreign_bodies_are_not_ours(content: bytes) -> None:
    assert from_body(content) is None


def test_a_value_error_of_the_media_path_is_the_clients() -> None:
    with pytest.raises(InvalidMedia, match="too narrow") as caught, media_errors("messages.0.content.1"):
        raise ValueError("too narrow")
    assert caught.value.param == "messages.0.content.1"


@pytest.mark.parametrize("bug", [RuntimeError("bug"), KeyError("bug"), AttributeError("bug")])
def test_anything_else_of_the_media_path_is_the_servers(bug: Exception) -> None:
    with pytest.raises(type(bug)) as caught, media_errors():
        raise bug
    assert isinstance(from_exception(caught.value), InternalError)


def test_a_bug_keeps_its_text_to_the_log() -> None:
    assert "secret" not in from_exception(RuntimeError("secret path")).message
    failure = EncoderFailed("gone")
    assert from_exception(failure) is failure
