"""Connections that are badly behaved: each gets a sane answer or is closed, and costs little."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

from shared import protocol
from shared.http import install
from shared.lifecycle import Drain
from shared.pacing import PacedProtocol, Pump
from shared.telemetry import Metrics
from tests.processes import free_port

HOST = b"host: a\r\n"
LIMIT = protocol.MAX_HEAD_BYTES


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    app.state.release = asyncio.Event()
    app.state.headers = []
    install(app, Metrics(), 10**6, Drain(1, AssertionError), work=("/echo",))

    @app.post("/echo")
    async def echo(request: Request) -> int:
        size = len(await request.body())
        app.state.headers.append(dict(request.headers))
        return size

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun"
            await app.state.release.wait()

        return StreamingResponse(parts())

    return app


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer, which has a length."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)).decode()
        status, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(status.split()[1]), headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def closed(self) -> bytes:
        """What still comes until the server closes."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 5)
        return b""

    async def refusal(self) -> tuple[int, str]:
        """Status and message of the answer, in our form, after which the server closes."""
        status, headers, body = await self.answer()
        assert headers["x-request-id"]
        error = json.loads(body)["error"]
        assert error["code"] == "invalid_request"
        assert await self.closed() == b""
        return status, error["message"]


@asynccontextmanager
async def connect(port: int, data: bytes = b"") -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    yield Client(reader, writer)
    writer.close()


@pytest.fixture
async def port(app: FastAPI) -> AsyncIterator[int]:
    port = free_port()
    protocol_class = partial(PacedProtocol, Pump())
    config = uvicorn.Config(app, port=port, http=protocol_class, log_config=None, ws="none")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield port
    app.state.release.set()
    server.should_exit = server.force_exit = True
    await task


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(protocol.BoundedProtocol, "head_seconds", 0.3)
    return


def get(path: str = "/health", headers: bytes = HOST) -> bytes:
    return f"GET {path} HTTP/1.1\r\n".encode() + headers + b"\r\n"


CHUNKED = b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        get(headers=b"x: " + b"y" * LIMIT + b"\r\n"),
        get(headers=b"x: " + b"y" * 8000 + b"\r\n" + (b"z: " + b"y" * 8000 + b"\r\n") * 9),
        get(headers=b"y" * LIMIT + b": x\r\n"),
        get(headers=b"a:b\r\n" * 129),
        get("/" + "a" * LIMIT),
        get("/?" + "a" * LIMIT),
        b"GET /" + b"a" * 2 * LIMIT,
        b"GET / HTTP/1.1\r\nx: " + b"y" * 3 * LIMIT,
        b"POST /echo HTTP/1.1\r\nx: " + b"y" * 3 * LIMIT,
        b"\r\n" * LIMIT,
    ],
)
async def test_large_heads_are_refused(port: int, data: bytes) -> None:
    async with connect(port, data) as client:
        status, message = await client.refusal()
        assert (status, str(LIMIT) in message) == (431, True)
    async with connect(port, get()) as client:
        assert (await client.answer())[0] == 200


async def test_large_heads_are_refused_however_slowly_they_come(port: int) -> None:
    async with connect(port, b"GET / HTTP/1.1\r\nx: ") as client:
        for _ in range(LIMIT // 1000 + 2):
            client.writer.write(b"y" * 1000)
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.refusal())[0] == 431


async def test_sane_heads_are_welcome(port: int) -> None:
    large = b"x: " + b"y" * 60_000 + b"\r\n" + b"a: b\r\n" * 100
    async with connect(port, get(headers=large) + get(headers=large)) as client:
        assert (await client.answer())[0] == (await client.answer())[0] == 200
        body = bytes(900_000)
        client.writer.write(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 900000\r\n\r\n" + body + get())
        assert (await client.answer())[2] == b"900000"
        assert (await client.answer())[0] == 200
        client.writer.write(CHUNKED + (b"100\r\n" + bytes(256) + b"\r\n") * 2000 + b"0\r\n\r\n" + get())
        assert (await client.answer())[2] == b"512000"
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize(
    "piece",
    [
        b"1\r\nx\r\n",
        b"1;" + b"e" * 100 + b"\r\nx\r\n",
        b"1;" + b"e" * 3 * LIMIT,
        b"0\r\n" + b"a: b\r\n" * 40_000,
        b"0\r\na: " + b"b" * 3 * LIMIT,
    ],
)
async def test_little_may_come_beside_a_body(port: int, piece: bytes) -> None:
    # While the body is being read, there is nobody to refuse it; the connection is closed.
    async with connect(port, CHUNKED + piece * (4 * LIMIT // len(piece) + 1)) as client:
        assert await client.closed() == b""


async def test_trailers_are_no_headers(port: int, app: FastAPI) -> None:
    async with connect(port, CHUNKED + b"1\r\nx\r\n0\r\nauthorization: Bearer x\r\n\r\n") as client:
        assert (await client.answer())[2] == b"1"
    assert "authorization" not in app.state.headers[0]


@pytest.mark.parametrize("data", [b"", b"G", b"GET / HTTP/1.1\r\nx: y\r\n", get() + b"POST / HT"])
async def test_heads_may_not_take_for_ever(port: int, hasty: None, data: bytes) -> None:
    async with connect(port, data) as client:
        if data.startswith(get()):
            assert (await client.answer())[0] == 200
        if data:
            assert (await client.refusal())[0] == 408
        else:
            assert await client.closed() == b""


async def test_dripping_makes_no_more_time(port: int, hasty: None) -> None:
    async with connect(port, get() + b"GET / HTTP/1.1\r\nx: ") as client:

        async def drip() -> None:
            while True:
                client.writer.write(b"y")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert (await client.answer())[0] == 200
        assert (await client.refusal())[0] == 408
        dripping.cancel()


async def test_answers_may_take_longer_than_heads(port: int, hasty: None, app: FastAPI) -> None:
    async with connect(port, get("/stream")) as client:
        await asyncio.sleep(0.5)
        app.state.release.set()
        await asyncio.wait_for(client.reader.readuntil(b"0\r\n\r\n"), 5)
        client.writer.write(get())
        assert (await client.answer())[0] == 200


async def test_few_requests_may_be_sent_ahead(port: int, app: FastAPI) -> None:
    async with connect(port, get() * 16) as client:
        for _ in range(16):
            assert (await client.answer())[0] == 200
    async with connect(port, get("/stream") + get() * 1000) as client:
        await client.closed()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(30), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 404),
        (b"GET / HTTP/3.7\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET http:// HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nx\x00: y\r\n\r\n", 400),
        (b"CONNECT inside:22 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx", 400),
        (b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 999999999999999999\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", 404),
        (b"TRACE /health HTTP/1.1\r\nhost: a\r\n\r\n", 405),
        (b"GET http://other/health HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        (b"GET /health HTTP/1.0\r\n\r\n", 200),
        (
            b"GET /health HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-key: a\r\n\r\n",
            200,
        ),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: Upgrade, HTTP2-Settings\r\n\r\n", 200),
        (b"POST /echo HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: Upgrade\r\ncontent-length: 2\r\n\r\nxx", 200),
        (get("/%00%ff/../..//health"), 404),
    ],
)
async def test_odd_requests_get_sane_answers(port: int, data: bytes, status: int) -> None:
    async with connect(port, data) as client:
        answered, headers, body = await client.answer()
        assert answered == status
        assert headers["x-request-id"]
        if status >= 400:
            assert json.loads(body)["error"]["code"] == "invalid_request"
    async with connect(port, get()) as client:
        assert (await client.answer())[0] == 200
