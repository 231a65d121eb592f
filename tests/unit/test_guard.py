"""A guarded route looks at the caller before it reads anything of the body."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.types import Message

from shared.errors import EncoderUnavailable, InvalidRequest
from shared.guard import guarded
from shared.http import install
from shared.lifecycle import Drain
from shared.telemetry import Metrics


class Body(BaseModel):
    number: int


def app_of() -> FastAPI:
    def check(request: Request) -> None:
        if request.headers.get("authorization") != "friend":
            raise InvalidRequest("who are you?", param="authorization")

    app = FastAPI()
    install(app, Metrics(), 2**20, Drain(1.0, lambda: EncoderUnavailable("ending")))
    control = guarded(check)

    @control.post("/parsed")
    async def parsed(body: Body) -> int:
        return body.number

    @control.post("/raw")
    async def raw(request: Request) -> int:
        return len(await request.body())

    @app.get("/open")
    async def open_to_all() -> int:
        return 1

    app.include_router(control)
    return app


async def call(path: str, method: str = "POST", who: str = "", body: bytes = b'{"number": 7}') -> tuple[int, bytes, int]:
    """Status and body of the answer, and how many pieces of the request's body were read."""
    read, sent = 0, list[Message]()

    async def receive() -> Message:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"authorization", who.encode())]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b"", "http_version": "1.1"}
    await app_of()(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent), read


@pytest.mark.parametrize("path", ["/parsed", "/raw"])
async def test_a_stranger_is_refused_unread(path: str) -> None:
    status, answer, read = await call(path)
    assert (status, read) == (400, 0)
    assert b"who are you?" in answer


async def test_a_friend_is_served() -> None:
    assert await call("/parsed", who="friend") == (200, b"7", 1)
    assert await call("/raw", who="friend") == (200, b"13", 1)
    status, answer, _ = await call("/parsed", who="friend", body=b'{"number": "x"}')
    assert (status, b"who are you?" in answer) == (400, False)


async def test_other_routes_are_open() -> None:
    assert (await call("/open", "GET"))[:2] == (200, b"1")
