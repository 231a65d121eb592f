"""The body of an ``/encode`` call takes room before it is read, gives it back however it ends, and may not take for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message

from services.encoder.app import Parts, create_app
from services.encoder.faults.registry import Faults
from services.encoder.heart import Heart
from services.encoder.publisher import Publisher
from services.encoder.settings import EncoderSettings
from shared.control import EncodeItem, EncodeRequest
from shared.dataurl import is_data_url
from shared.errors import ErrorBody
from tests.unit.test_announcer import INFO
from tests.unit.test_pipeline import FEATURE_BYTES, PICTURE, Bench, bench, leave, until

ROOM = 10_000


class Peer:
    """A client of the application that sends its body as slowly as the test likes."""

    def __init__(self, app: Any, declared: int | None, kind: str = "application/json") -> None:
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.status, self.headers, self.body = 0, dict[bytes, bytes](), b""
        headers = [(b"content-type", kind.encode())]
        if declared is not None:
            headers.append((b"content-length", str(declared).encode()))
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/encode",
            "query_string": b"",
            "headers": headers,
        }
        self.call = asyncio.create_task(app(scope, self.sent.get, self._answered))

    def send(self, data: bytes, last: bool = False) -> None:
        self.sent.put_nowait({"type": "http.request", "body": data, "more_body": not last})

    def hang_up(self) -> None:
        self.sent.put_nowait({"type": "http.disconnect"})

    async def _answered(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        self.body += message.get("body", b"")

    async def code(self) -> str | None:
        """What the answer says went wrong."""
        await asyncio.wait_for(asyncio.shield(self.call), 5)
        return ErrorBody.model_validate_json(self.body).error.code if self.status >= 400 else None


class House:
    """An application around a pipeline."""

    def __init__(self, app: Any, around: Bench) -> None:
        self.app, self.bench = app, around

    def peer(self, declared: int | None, kind: str = "application/json") -> Peer:
        return Peer(self.app, declared, kind)

    @property
    def held(self) -> float:
        return self.bench.metric("epd_encoder_bytes_in_work")

    async def until_held(self, count: int) -> None:
        await until(lambda: self.held == count)

    def body(self, url: str = "http://a/") -> bytes:
        item = EncodeItem(index=0, url=url)
        call = EncodeRequest(request_id="r/1", num_items=1, items=(item,), reply_to=self.bench.reply_to, timeout=10)
        return call.model_dump_json().encode()


@asynccontextmanager
async def house(**changes: object) -> AsyncIterator[House]:
    settings = EncoderSettings.model_validate({"max_bytes": ROOM, "max_items": 2} | changes)
    app, publisher = create_app(settings), Publisher()
    async with bench(**settings.model_dump()) as b:
        heart = Heart(settings, "encoder-1", b.pipeline, publisher, Faults(), b.pipeline.carriers)
        app.state.parts = Parts(INFO, b.pipeline, heart)
        yield House(app, b)
        assert (b.metric("epd_encoder_bytes_in_work"), b.metric("epd_encoder_items_in_work")) == (0, 0)
    publisher.close()


async def test_a_declared_body_takes_its_room_before_it_comes() -> None:
    async with house() as h:
        first = h.peer(6000)
        await h.until_held(6000)
        refused = h.peer(6000)
        assert await refused.code() == "encoder_overloaded"
        assert (refused.status, int(refused.headers[b"retry-after"]) >= 1) == (503, True)
        first.hang_up()
        await first.call
        assert h.held == 0
        # Alone, any size is welcome.
        large = h.peer(10 * ROOM)
        await h.until_held(10 * ROOM)
        large.send(b"nonsense", last=True)
        assert await large.code() == "invalid_request"


async def test_a_body_without_a_length_is_counted_as_it_comes() -> None:
    async with house() as h:
        slow, other = h.peer(None), h.peer(None)
        slow.send(bytes(6000))
        await h.until_held(6000)
        other.send(bytes(3000))
        await h.until_held(9000)
        other.send(bytes(3000))
        assert await other.code() == "encoder_overloaded"
        assert h.held == 6000
        slow.send(bytes(2 * ROOM))
        await h.until_held(6000 + 2 * ROOM)
        await leave(slow.call)


async def test_nothing_is_read_where_no_item_could_be_taken() -> None:
    async with house(max_items=1) as h:
        busy = h.bench.call("http://a/")
        await h.bench.web.reached.wait()
        assert await h.peer(100).code() == "encoder_overloaded"
        await leave(busy)


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with house(body_timeout=0.2) as h:
        half = h.peer(6000)
        half.send(bytes(3000))
        await h.until_held(6000)
        assert await half.code() == "invalid_request"
        assert (half.status, b"did not arrive within" in half.body) == (400, True)
        assert h.held == 0


async def test_a_body_that_is_still_arriving_when_the_encoder_ends_is_answered() -> None:
    async with house() as h:
        half = h.peer(6000)
        await h.until_held(6000)
        h.app.state.drain.begin()
        h.app.state.drain.expired.set()
        assert await half.code() == "encoder_unavailable"


@pytest.mark.parametrize("kind", ["http", "data", "part"])
async def test_a_body_becomes_its_calls_bytes_and_is_not_counted_twice(kind: str) -> None:
    async with house() as h:
        h.bench.model.decoding.open.clear()
        h.bench.model.tower.open.clear()
        if kind == "part":
            request = EncodeRequest(
                request_id="r/1",
                num_items=1,
                items=(EncodeItem(index=0, part="p"),),
                reply_to=h.bench.reply_to,
                timeout=10,
            ).model_dump_json()
            head = 'Content-Disposition: form-data; name="{}"'
            body = b"\r\n".join(
                [
                    b"--b",
                    head.format("request").encode(),
                    b"",
                    request.encode(),
                    b"--b",
                    head.format("p").encode() + b'; filename="p"',
                    b"",
                    PICTURE,
                    b"--b--",
                    b"",
                ]
            )
            peer = h.peer(len(body), "multipart/form-data; boundary=b")
        else:
            url = "http://a/" if kind == "http" else "data:," + "x" * 500
            body = h.body(url)
            peer = h.peer(len(body))
        await h.until_held(len(body))
        peer.send(body, last=True)
        if kind != "part":
            await h.bench.web.reached.wait()
            assert h.held == (len(url) if is_data_url(url) else 0)
            h.bench.web.answer.set()
        await h.bench.model.decoding.until_reached()
        assert h.held == len(PICTURE)
        h.bench.model.decoding.open.set()
        await h.bench.model.tower.until_reached()
        assert h.held == FEATURE_BYTES
        h.bench.model.tower.open.set()
        await h.bench.received()
        assert await peer.code() is None
        assert peer.status == 200


def part(name: str | None = "p", value: bytes = PICTURE, filename: str | None = "p", headers: bytes = b"") -> bytes:
    """One part of a multipart body whose boundary is b."""
    place = "".join(f'; {key}="{text}"' for key, text in (("name", name), ("filename", filename)) if text is not None)
    return f"--b\r\nContent-Disposition: form-data{place}\r\n".encode() + headers + b"\r\n" + value + b"\r\n"


def described(h: House) -> bytes:
    """The part that says what to do with the picture in part p."""
    call = EncodeRequest(
        request_id="r/1", num_items=1, items=(EncodeItem(index=0, part="p"),), reply_to=h.bench.reply_to, timeout=10
    )
    return part("request", call.model_dump_json().encode(), filename=None)


MULTIPART = "multipart/form-data; boundary=b"
END = b"--b--\r\n"
HOSTILE: dict[str, tuple[str, bytes]] = {
    "no boundary": ("multipart/form-data", b""),
    "an empty boundary": ("multipart/form-data; boundary=", b""),
    "a charset that takes for ever": (f"{MULTIPART}; charset=punycode", part("request", b"\xff-" + b"a" * 10**5, None)),
    "nothing": (MULTIPART, b""),
    "no end": (MULTIPART, part("request", b"{}", None)[:-20]),
    "no parts": (MULTIPART, END),
    "a part without a name": (MULTIPART, part(None) + END),
    "a part without a head": (MULTIPART, b"--b\r\n\r\nx\r\n" + END),
    "too many files": (MULTIPART, part() * 3 + END),
    "too many fields": (MULTIPART, part(filename=None) * 3 + END),
    "many headers of a part": (MULTIPART, part(headers=b"a: b\r\n" * 20) + END),
    "a long header of a part": (MULTIPART, part(headers=b"a: " + b"b" * 5000 + b"\r\n") + END),
    "a header of a part that never ends": (MULTIPART, b"--b\r\n" + b"a" * 5000),
    "a long file name": (MULTIPART, part(filename="a" * 5000) + END),
    "the request as a file": (MULTIPART, part("request", b"{}") + END),
    "text that is no UTF-8": (MULTIPART, part("request", b"\xff\xfe", None) + END),
    "deep JSON in a part": (MULTIPART, part("request", b"[" * 10**6, None) + END),
    "deep JSON": ("application/json", b"[" * 10**6),
    "deep objects": ("application/json", b'{"items":' * 10**5),
    "many values": ("application/json", b'{"items":[' + b'{"a":0},' * 10**6),
    "many fields": ("application/json", b"{" + b",".join(b'"%d":0' % at for at in range(10**5)) + b"}"),
    "a large number": ("application/json", b'{"num_items":' + b"9" * 10**6 + b"}"),
    "half a surrogate": ("application/json", b'{"request_id":"\\ud800"}'),
    "no text": ("application/json", bytes(range(256)) * 100),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bodies_are_refused_in_little_time(name: str) -> None:
    kind, body = HOSTILE[name]
    async with house(max_bytes=10**8) as h:
        peer = h.peer(len(body), kind)
        began = time.perf_counter()
        peer.send(body, last=True)
        assert await peer.code() == "invalid_request"
        assert peer.status == 400
        assert len(peer.body) < 2000
        assert time.perf_counter() - began < 2
        assert h.held == 0


async def test_names_of_files_are_not_looked_at() -> None:
    async with house(max_bytes=10**6) as h:
        for filename in ("", "../../etc/passwd", "/dev/zero", "a" * 2000, "a\0b", "\u202e.png"):
            body = described(h) + part(filename=filename) + END
            peer = h.peer(len(body), MULTIPART)
            peer.send(body, last=True)
            assert await peer.code() is None
            await h.bench.received()
