"""The failures of the API: what is remembered of each, and what is not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from starlette.requests import Request

from services.language.access import install_keys
from services.language.api.failures import install_failure_routes
from services.language.failures import KEPT, RecentFailures
from shared.errors import EncoderFailed, EncoderLost, InvalidRequest
from shared.http import install
from shared.lifecycle import Drain
from shared.outcome import failed
from shared.telemetry import Metrics

CHAT = "/v1/chat/completions"


def app_of(keys: list[str] | None = None) -> FastAPI:
    app, failures = FastAPI(), RecentFailures(clock=lambda: 1000.0)
    install_keys(app, keys or [], "127.0.0.1")
    install(app, Metrics(), 2**20, Drain(1.0, lambda: EncoderLost("ending")), work=(CHAT,), on_failure=failures.add)
    install_failure_routes(app, failures)

    @app.post(CHAT)
    async def chat(request: Request) -> StreamingResponse:
        kind = (await request.body()).decode()
        if kind == "lost":
            error = EncoderLost("The encoder at http://a is lost.")
            error.encoder, error.encoder_id = "http://a", "encoder-1"
            raise error
        if kind == "bad":
            raise InvalidRequest("The secret of the client.", param="messages.0")
        if kind == "bug":
            raise RuntimeError("the secret of a bug")

        async def pieces() -> AsyncIterator[bytes]:
            yield b"a"
            if kind == "stream":
                failed(request.scope, EncoderFailed("It broke."))

        return StreamingResponse(pieces())

    @app.post("/v1/encoders")
    async def register() -> None:
        raise InvalidRequest("another model")

    @app.get("/ready")
    async def ready() -> None:
        raise EncoderLost("not ready")

    @app.get("/v1/models/{name}")
    async def model(name: str) -> None:
        raise InvalidRequest(f"no model {name}")

    return app


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://language", headers={"x-request-id": "request-1"})


async def test_a_failure_is_told_with_all_that_helps() -> None:
    async with client_of(app_of()) as client:
        await client.post(CHAT, content="good")
        assert (await client.get("/v1/failures")).json() == {"object": "list", "since": 1000.0, "counts": {}, "data": []}
        await client.post(CHAT, content="lost")
        await client.post(CHAT, content="stream")
        told = (await client.get("/v1/failures")).json()
    assert told["counts"] == {"encoder_lost": 1, "encoder_failed": 1}
    newest, first = told["data"]
    assert first == {
        "time": 1000.0,
        "code": "encoder_lost",
        "status": 503,
        "method": "POST",
        "path": CHAT,
        "request_id": "request-1",
        "param": None,
        "message": "The encoder at http://a is lost.",
        "encoder": "http://a",
        "encoder_id": "encoder-1",
        "streamed": False,
    }
    assert (newest["code"], newest["status"], newest["streamed"]) == ("encoder_failed", 503, True)


async def test_what_only_the_client_is_to_see_is_not_kept() -> None:
    async with client_of(app_of()) as client:
        await client.post(CHAT, content="bad")
        await client.post(CHAT, content="bug")
        await client.get("/v1/models/secret-name")
        await client.post(CHAT, content=b"x" * (2**20 + 1))
        answer = await client.get("/v1/failures")
    assert answer.json()["counts"] == {"invalid_request": 3, "internal_error": 1}
    assert "secret" not in answer.text
    paths = [(failure["path"], failure["param"]) for failure in answer.json()["data"]]
    assert paths == [(CHAT, None), ("/v1/models/{name}", None), (CHAT, None), (CHAT, "messages.0")]


async def test_probes_registrations_and_strangers_push_nothing_out() -> None:
    async with client_of(app_of(["key"])) as client:
        for _ in range(KEPT):
            await client.get("/ready")
            await client.get("/favicon.ico")
            await client.post("/v1/encoders", json={})
            await client.get("/v1/models/a")
        told = (await client.get("/v1/failures", headers={"authorization": "Bearer key"})).json()
    assert told["counts"] == {"invalid_api_key": KEPT}
    assert told["data"] == []


async def test_only_the_last_hundred_are_kept_but_all_are_counted() -> None:
    async with client_of(app_of()) as client:
        for number in range(KEPT + 5):
            await client.post(CHAT, content="lost", headers={"x-request-id": f"r{number}"})
        told = (await client.get("/v1/failures")).json()
    assert told["counts"] == {"encoder_lost": KEPT + 5}
    assert [failure["request_id"] for failure in told["data"]] == [f"r{number}" for number in range(KEPT + 4, 4, -1)]
