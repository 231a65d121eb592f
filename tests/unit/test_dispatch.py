"""What an encoder's answer means, and where it is told to send."""

from __future__ import annotations

import pytest

from services.language.embeddings.dispatch import meaning_of, reply_address
from shared.errors import ERRORS, InvalidRequest, body_of
from shared.seam import Seam

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("status", "told", "code"),
    [
        (400, "invalid_media", "invalid_media"),
        (400, "invalid_request", "invalid_request"),
        (413, "invalid_media", "invalid_media"),
        (413, None, "invalid_media"),
        (415, None, "invalid_media"),
        (503, "encoder_overloaded", "encoder_overloaded"),
        (503, None, "encoder_overloaded"),
        (503, "embedding_timeout", "embedding_timeout"),
        (503, "encoder_unavailable", "encoder_unavailable"),
        (500, "internal_error", "encoder_failed"),
        (500, "invalid_media", "encoder_failed"),
        (502, None, "encoder_failed"),
        (404, None, "encoder_failed"),
        (400, None, "encoder_failed"),
        (302, None, "encoder_failed"),
    ],
)
def test_answers_keep_blame_where_it_belongs(status: int, told: str | None, code: str) -> None:
    body = b"<html>" if told is None else body_of(ERRORS[told]("why", param="messages")).model_dump_json().encode()
    assert meaning_of(status, body, None, URL).code == code


@pytest.mark.parametrize("param", [None, "reply_to", "items.0.url"])
def test_a_call_that_we_made_wrongly_is_not_the_clients_fault(param: str | None) -> None:
    body = body_of(ERRORS["invalid_request"]("extra field", param=param)).model_dump_json().encode()
    failure = meaning_of(400, body, None, URL)
    assert failure.code == "encoder_failed"
    assert "extra field" in failure.message


def test_an_encoders_retry_after_is_passed_on() -> None:
    body = body_of(ERRORS["encoder_overloaded"]("full")).model_dump_json().encode()
    assert meaning_of(503, body, "7", URL).retry_after == 7


def test_an_address_to_listen_on_is_never_handed_out() -> None:
    assert reply_address(URL, "0.0.0.0", 5557, None) == "tcp://127.0.0.1:5557"
    assert reply_address("http://[::1]:9", "::", 5557, None) == "tcp://[::1]:5557"
    assert reply_address(URL, "0.0.0.0", 5557, "language") == "tcp://language:5557"
    assert reply_address(URL, "10.0.0.7", 5557, None) == "tcp://10.0.0.7:5557"


@pytest.mark.parametrize(
    "endpoint", ["tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://*:1", "ipc:///tmp/x", "tcp://h", "tcp://h:0", "tcp://h:99999", ""]
)
def test_an_encoder_refuses_such_destinations(endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="reply_to"):
        Seam(anywhere=True).check_reply_to(endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5557", "tcp://language:5557", "tcp://[::1]:5557", "tcp://a-b.example:1"])
def test_an_encoder_takes_real_destinations(endpoint: str) -> None:
    Seam(anywhere=True).check_reply_to(endpoint)
