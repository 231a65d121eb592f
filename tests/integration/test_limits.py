"""The limits of the running services: what passes one is refused by name, and the services go on as if it had not come."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.chats import data_url, encoded, user
from tests.conftest import Pair
from tests.processes import Service

CHAT = "/v1/chat/completions"
TEXT = user("Say something.", max_tokens=1)
PICTURE = encoded(Image.new("RGB", (256, 256), "red"))


@pytest.fixture(autouse=True)
def goes_on(pair: Pair) -> Iterator[None]:
    """After each test both services answer, and are the processes that they were."""
    logs = [service.log for service in (pair.encoder, pair.language)]
    before = [len(log.read_text()) for log in logs]
    yield
    assert pair.client.post(CHAT, json=user(PICTURE, "What is it?", max_tokens=1)).status_code == 200
    for service in (pair.encoder, pair.language):
        assert service.process.poll() is None
    for log, length in zip(logs, before, strict=True):
        assert "Traceback" not in log.read_text()[length:]


@contextmanager
def raw(service: Service) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        yield connection


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer on a connection that the service then closes."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"x-request-id" in head
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("side", ["encoder", "language"])
def test_heads_are_bounded(pair: Pair, side: str) -> None:
    service: Service = getattr(pair, side)
    with raw(service) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: a\r\n" + b"x: " + b"y" * 70_000 + b"\r\n\r\n")
        status, body = answer(connection)
    assert (status, body["error"]["code"]) == (431, "invalid_request")
    with raw(service) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * 200 + b"\r\n")
        assert answer(connection)[0] == 431
    with raw(service) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert answer(connection)[0] == 400


def test_headers_that_are_passed_on_are_bounded_further(pair: Pair) -> None:
    """Else a client could have every encoder refuse, and seem to have failed."""
    for size, status in ((8000, 200), (60_000, 400)):
        response = pair.client.post(CHAT, json=user(PICTURE, max_tokens=1), headers={"x-epd-a": "x" * size})
        assert (response.status_code, "8192" in response.text) == (status, status == 400)


def test_there_are_no_websockets(pair: Pair) -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "a" * 22 + "==",
        "sec-websocket-version": "13",
    }
    for service in (pair.encoder, pair.language):
        assert httpx.get(f"{service.url}/health", headers=upgrade, trust_env=False).status_code == 200
        assert httpx.get(f"{service.url}/ws", headers=upgrade, trust_env=False).status_code == 404


HOSTILE = {
    "deep lists": b"[" * 10**6,
    "deep closed lists": b'{"messages":' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    "deep objects": b'{"a":' * 10**5,
    "deep in an unknown field": b'{"messages":[{"role":"user","content":"a"}],"x":' + b"[" * 10**6 + b"}",
    "a long number": b'{"messages":[{"role":"user","content":"a"}],"x":' + b"9" * 10**6 + b"}",
    "many values": b'{"messages":[{"role":"user","content":"a"}],"x":[' + b"[]," * 10**6 + b"[]]}",
    "many fields": b"{" + b",".join(b'"%d":0' % at for at in range(10**6)) + b"}",
    "half a surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    "no UTF-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
    "NaN": b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", [CHAT, "/encode", "/v1/subscribe", "/v1/encoders"])
def test_hostile_json_is_refused(pair: Pair, path: str, name: str) -> None:
    service = pair.encoder if path in ("/encode", "/v1/subscribe") else pair.language
    response = httpx.post(
        service.url + path, content=HOSTILE[name], headers={"content-type": "application/json"}, timeout=10, trust_env=False
    )
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert response.elapsed.total_seconds() < 3
    assert len(response.content) < 2000


@pytest.mark.parametrize(
    "field",
    ["seed", "max_tokens", "top_k", "min_tokens", "stop_token_ids", "logit_bias", "temperature", "n", "repetition_penalty"],
)
def test_large_numbers_are_refused_or_mean_nothing_bad(pair: Pair, field: str) -> None:
    for number in (10**6, 2**31, 2**63, 2**64, -(2**63) - 1, 10**100, 10**4000, 1e300):
        value: Any = {"stop_token_ids": [number], "logit_bias": {str(number): 1}}.get(field, number)
        response = pair.client.post(CHAT, json=TEXT | {field: value})
        assert response.status_code in (200, 400), f"{number:.3g}" if number < 2**64 else "a very large one"


@pytest.mark.parametrize("path", ["/v1/subscribe", "/v1/encoders", "/health"])
def test_only_the_work_may_have_large_bodies(pair: Pair, path: str) -> None:
    service = pair.encoder if path == "/v1/subscribe" else pair.language
    response = httpx.post(service.url + path, content=b" " * 70_000, timeout=10, trust_env=False)
    assert (response.status_code, "65536" in response.text) == (400, True)
    chunked = httpx.post(service.url + path, content=iter([b" " * 40_000, b" " * 40_000]), timeout=10, trust_env=False)
    assert chunked.status_code in (400, 405)


def test_items_are_bounded(pair: Pair) -> None:
    refused = pair.client.post(CHAT, json=user(*[PICTURE] * 33))
    assert (refused.status_code, "32" in refused.text) == (400, True)
    items = [{"index": index, "url": "http://a/"} for index in range(300)]
    call = {"request_id": "a/1", "num_items": 300, "items": items, "reply_to": "tcp://127.0.0.1:9", "timeout": 5}
    response = httpx.post(f"{pair.encoder.url}/encode", json=call, trust_env=False)
    assert (response.status_code, "256" in response.text) == (400, True)


def test_tokens_of_an_item_are_bounded_on_both_sides(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    with (
        Service("encoder", folder, max_item_tokens=3).start(wait=False) as encoder,  # each picture of the demo takes four
        Service("language", folder, encoders=pair.encoder.url, max_item_tokens=3).start(wait=False) as language,
    ):
        encoder.wait_until_ready()
        items = [{"index": 0, "url": data_url(PICTURE), "param": "messages.0"}]
        call = {"request_id": "a/1", "num_items": 1, "items": items, "reply_to": "tcp://127.0.0.1:9", "timeout": 5}
        response = httpx.post(f"{encoder.url}/encode", json=call, trust_env=False)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "invalid_media", "messages.0")
        assert error["message"] == "The item needs 4 tokens; at most 3 are accepted."
        assert "epd_encoder_batch_items_sum 0.0" in httpx.get(f"{encoder.url}/metrics", trust_env=False).text
        language.wait_until_ready(encoders=1)
        response = httpx.post(language.url + CHAT, json=user(PICTURE, max_tokens=1), timeout=30, trust_env=False)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "embedding_incompatible")
        assert "has 4 tokens; at most 3 are accepted" in error["message"]
