"""Keys and origins: who may call the API, and what the others are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.types import Message
from structlog.testing import capture_logs

from services.language.access import install_cors, install_keys, is_guarded
from services.language.settings import LanguageSettings
from shared.errors import EncoderUnavailable
from shared.http import install
from shared.lifecycle import Drain
from shared.telemetry import Metrics

CHAT = "/v1/chat/completions"
ORIGIN = "https://chat.example"


def app_of(keys: Collection[str] = ("one", "two"), origins: Collection[str] = ()) -> tuple[FastAPI, Metrics]:
    app, metrics = FastAPI(), Metrics()
    install_keys(app, keys, "127.0.0.1")
    install(app, metrics, 2**20, Drain(1.0, lambda: EncoderUnavailable("ending")))
    install_cors(app, origins)

    @app.post(CHAT)
    async def chat(request: Request) -> int:
        if await request.body() == b"no encoder":
            raise EncoderUnavailable("none", retry_after=2)
        return 7

    return app, metrics


@asynccontextmanager
async def client_of(keys: Collection[str] = ("one", "two"), origins: Collection[str] = ()) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app_of(keys, origins)[0])
    async with httpx.AsyncClient(transport=transport, base_url="http://language") as client:
        yield client


@pytest.mark.parametrize("authorization", ["Bearer one", "bearer two", "Bearer  two "])
async def test_any_of_the_keys_opens(authorization: str) -> None:
    async with client_of() as client:
        answer = await client.post(CHAT, headers={"authorization": authorization})
    assert (answer.status_code, answer.json()) == (200, 7)


@pytest.mark.parametrize(
    ("authorization", "message"),
    [
        (None, "asks for an API key"),
        ("one", "asks for an API key"),
        ("Basic one", "asks for an API key"),
        ("Bearer", "none that this service knows"),
        ("Bearer ", "none that this service knows"),
        ("Bearer three", "none that this service knows"),
        ("Bearer one,two", "none that this service knows"),
        ("Bearer on\u00e9", "none that this service knows"),
    ],
)
async def test_without_a_key_the_answer_is_openais_401(authorization: str | None, message: str) -> None:
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    async with client_of() as client:
        answer = await client.post(CHAT, headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == 401
    assert (error["code"], error["type"], error["param"]) == ("invalid_api_key", "invalid_request_error", "authorization")
    assert message in error["message"]
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"].startswith("req-")


async def test_a_stranger_is_refused_unread_and_counted() -> None:
    app, metrics = app_of()
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}, receive, send)
    assert sent[0]["status"] == 401
    counted = metrics.registry.get_sample_value("epd_requests_total", {"route": "unmatched", "code": "invalid_api_key"})
    assert counted == 1


async def test_nothing_of_a_key_is_in_the_log_or_in_the_settings_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_API_KEY", " sesame-1, ,sesame-2")
    settings = LanguageSettings()
    assert settings.api_keys() == {"sesame-1", "sesame-2"}
    with capture_logs() as logged:
        async with client_of(settings.api_keys()) as client:
            await client.post(CHAT, headers={"authorization": "Bearer sesame-3"})
    assert [entry["code"] for entry in logged] == ["invalid_api_key"]
    assert "sesame" not in f"{settings!r}{settings}{logged}"


async def test_without_keys_everybody_is_let_in() -> None:
    async with client_of(keys=()) as client:
        assert (await client.post(CHAT)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "guarded"),
    [
        ("POST", "/v1/chat/completions", True),
        ("POST", "/v1/chat/completions/render", True),
        ("POST", "/v1/completions", True),
        ("GET", "/v1/models/a/b", True),
        ("GET", "/v1/info", True),
        ("GET", "/v1/encoders", True),
        ("DELETE", "/v1/encoders", True),
        ("POST", "/v1/encoders", False),
        ("POST", "/v1/encoders/e1/faults", True),
        ("POST", "/tokenize", True),
        ("POST", "/detokenize", True),
        ("GET", "/", False),
        ("GET", "/health", False),
        ("GET", "/ready", False),
        ("GET", "/metrics", False),
        ("GET", "/openapi.json", False),
    ],
)
def test_what_is_the_apis_needs_a_key(method: str, path: str, guarded: bool) -> None:
    assert is_guarded(method, path) == guarded


@pytest.mark.parametrize(("keys", "host", "warned"), [((), "0.0.0.0", 1), ((), "127.0.0.1", 0), (("one",), "0.0.0.0", 0)])
def test_a_service_that_is_open_to_others_says_so(keys: tuple[str, ...], host: str, warned: int) -> None:
    with capture_logs() as logged:
        install_keys(FastAPI(), keys, host)
    assert [entry["log_level"] for entry in logged] == ["warning"] * warned


async def test_preflights_need_no_key_and_allow_what_clients_send() -> None:
    asked = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-lang",
    }
    async with client_of(origins=(ORIGIN,)) as client:
        answer = await client.options(CHAT, headers=asked | {"x-request-id": "mine"})
        other = await client.options(CHAT, headers=asked | {"origin": "https://other.example"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["x-request-id"] == "mine"
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in other.headers
    assert other.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("authorization", "body", "status"),
    [("Bearer one", b"", 200), ("", b"", 401), ("Bearer one", b"no encoder", 503), ("Bearer one", bytes(2**16 + 1), 400)],
)
async def test_pages_can_read_every_answer_and_its_headers(authorization: str, body: bytes, status: int) -> None:
    async with client_of(origins=(ORIGIN,)) as client:
        answer = await client.post(CHAT, headers={"authorization": authorization, "origin": ORIGIN}, content=body)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert exposed >= {"x-request-id", "retry-after"}
    assert ("retry-after" in answer.headers) == (status == 503)


async def test_no_origin_is_let_in_unless_it_is_named() -> None:
    async with client_of(origins=()) as closed, client_of(origins=("*",)) as wide:
        here = {"authorization": "Bearer one", "origin": ORIGIN}
        assert "access-control-allow-origin" not in (await closed.post(CHAT, headers=here)).headers
        assert (await wide.post(CHAT, headers=here)).headers["access-control-allow-origin"] == "*"
