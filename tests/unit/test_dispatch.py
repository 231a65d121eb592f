"""What an encoder's answer means, and where it is told to send."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.language.embeddings.dispatch import Dispatcher, meaning_of, open_client, reply_address
from shared.control import EncodeItem, EncodeRequest, Subscription
from shared.errors import ERRORS, EncoderFailed, InvalidRequest, body_of
from shared.seam import Seam, keys_of

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


def test_a_missing_token_is_not_the_clients_fault() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Seam(keys_of(b"a secret of the deployment")).check_token(None)
    failure = meaning_of(400, body_of(caught.value).model_dump_json().encode(), None, URL)
    assert failure.code == "encoder_failed"
    assert "different secrets" in failure.message


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


@pytest.mark.parametrize("answer", ["endless", "redirect"])
async def test_an_answer_that_is_none_of_an_encoders_is_neither_read_to_its_end_nor_followed(answer: str) -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if answer == "redirect":
            raise web.HTTPTemporaryRedirect("/elsewhere")
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(bytes(65536))
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    call = EncodeRequest(request_id="a/1", num_items=1, items=(EncodeItem(index=0, url="http://a/"),), reply_to="a", timeout=5)
    subscription = Subscription(reply_to="tcp://127.0.0.1:9", interval=1, lease=1)
    async with TestServer(app) as server, open_client() as client:
        dispatcher, url = Dispatcher(client, 5), str(server.make_url("")).rstrip("/")
        with pytest.raises(EncoderFailed):
            await asyncio.wait_for(dispatcher.encode(url, call, (), {}), 5)
        with pytest.raises(EncoderFailed, match="not an encoder"):
            await asyncio.wait_for(dispatcher.subscribe(url, subscription), 5)
    assert asked == ["/encode", "/v1/subscribe"]
