"""An encoder registers with each language service, again and again, and logs only what changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from pydantic import ValidationError

from services.encoder.announcer import Announcer
from services.encoder.discovery import languages_of
from services.encoder.settings import EncoderSettings
from shared.control import Registered, Registration, ServiceInfo
from shared.errors import InvalidRequest, body_of
from shared.seam import Seam, keys_of
from tests.processes import free_port, wait_for

KEYS = keys_of(b"a secret of the deployment")
INFO = ServiceInfo(
    service="encoder",
    service_id="encoder-1",
    version="1",
    wire_version=2,
    model="demo",
    model_type="qwen3_vl",
    model_fingerprint="f",
    device="cpu",
    dtype="float32",
    parameters={},
    parameters_total=0,
)


class Language:
    """A language service that only takes registrations, or refuses them."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.again = 0.0
        self.came: list[tuple[str, str, Registration]] = []
        language = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                registration = Registration.model_validate_json(body)
                language.came.append((self.path, self.headers["authorization"], registration))
                refusal = language.refusal
                answer = (
                    Registered(again=language.again).model_dump()
                    if refusal is None
                    else body_of(InvalidRequest(refusal)).model_dump()
                )
                content = json.dumps(answer).encode()
                self.send_response(200 if refusal is None else 400)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    async def until(self, count: int) -> None:
        await asyncio.to_thread(wait_for, lambda: len(self.came) >= count, 5, f"registration {count}")


@pytest.fixture
def language() -> Iterator[Language]:
    service = Language()
    yield service
    service.close()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    noted: list[tuple[str, Any]] = []

    class Log:
        def info(self, text: str, **fields: Any) -> None:
            noted.append((text, fields.get("reason")))

        warning = error = info

    monkeypatch.setattr("services.encoder.announcer._log", Log())
    return noted


def announcer(urls: str, **settings: object) -> Announcer:
    fields = {"announce_to": urls, "announce_interval": 0.01, "port": 8001, "max_items": 9} | settings
    parsed = EncoderSettings.model_validate(fields)
    return Announcer(parsed, INFO, Seam(KEYS), languages_of(parsed.announce_targets()))


async def test_it_says_what_it_is_with_the_token_again_and_again(language: Language) -> None:
    async with announcer(language.url):
        await language.until(3)
    expected = Registration(url="http://127.0.0.1:8001", info=INFO, max_items=9)
    assert language.came[:3] == [("/v1/encoders", f"Bearer {KEYS.token}", expected)] * 3


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"host": "10.0.0.7"}, "http://10.0.0.7:8001"),
        ({"host": "fd00::7"}, "http://[fd00::7]:8001"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:8001"),
        ({"host": "0.0.0.0", "advertise_url": "https://encoder.example:9/"}, "https://encoder.example:9"),
    ],
)
async def test_it_names_an_address_that_it_can_be_reached_at(language: Language, settings: dict[str, object], url: str) -> None:
    async with announcer(language.url, **settings):
        await language.until(1)
    assert language.came[0][2].url == url


async def test_only_changes_are_logged_with_the_reason(language: Language, lines: list[tuple[str, Any]]) -> None:
    language.refusal = "another checkpoint"
    async with announcer(language.url):
        await language.until(3)
        language.refusal = None
        await language.until(6)
    assert lines == [("not registered", "another checkpoint"), ("registered", None)]


async def test_a_service_with_many_encoders_is_told_as_seldom_as_it_wants(language: Language) -> None:
    language.again = 60.0
    async with announcer(language.url):
        await language.until(1)
        await asyncio.sleep(0.2)
    assert len(language.came) == 1


async def test_one_that_is_not_there_is_tried_again_and_does_not_disturb_the_other(
    language: Language, lines: list[tuple[str, Any]]
) -> None:
    async with announcer(f"http://127.0.0.1:{free_port()},{language.url}"):
        await language.until(3)
    assert sorted((text, (reason or "").partition(":")[0]) for text, reason in lines) == [
        ("not registered", "unreachable"),
        ("registered", ""),
    ]


async def test_after_stop_nothing_more_comes(language: Language) -> None:
    async with announcer(language.url) as one:
        await language.until(1)
        one.stop()
        await asyncio.sleep(0.05)
        count = len(language.came)
        await asyncio.sleep(0.1)
        assert len(language.came) == count


class Changing:
    """Language services that a test changes."""

    def __init__(self, *urls: str) -> None:
        self.now: Sequence[str] | Exception = urls
        self.looks = 0

    async def urls(self) -> Sequence[str]:
        self.looks += 1
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


async def test_one_that_appears_is_told_and_one_that_vanishes_is_left(language: Language, lines: list[tuple[str, Any]]) -> None:
    other = Language()
    languages = Changing(language.url)
    settings = EncoderSettings.model_validate({"announce_interval": 0.01})
    try:
        async with Announcer(settings, INFO, Seam(KEYS), languages):
            await language.until(1)
            languages.now = (other.url,)
            await other.until(2)
            count = len(language.came)
            await other.until(5)
            assert len(language.came) == count
    finally:
        other.close()
    assert lines == [("registered", None), ("left", None), ("registered", None)]


async def test_where_looking_fails_those_that_are_known_go_on_being_told(
    language: Language, lines: list[tuple[str, Any]]
) -> None:
    languages = Changing(language.url)
    settings = EncoderSettings.model_validate({"announce_interval": 0.01})
    async with Announcer(settings, INFO, Seam(KEYS), languages):
        await language.until(1)
        languages.now = RuntimeError("a bug")
        looks = languages.looks
        await language.until(len(language.came) + 3)
        assert languages.looks > looks


@pytest.mark.parametrize("field", ["announce_to", "advertise_url"])
@pytest.mark.parametrize("url", ["language:8000", "http://0.0.0.0:8000"])
def test_what_is_no_base_url_is_refused_at_start(field: str, url: str) -> None:
    with pytest.raises(ValidationError, match=field):
        EncoderSettings.model_validate({field: url})


async def test_no_failure_ends_the_rounds(
    language: Language, lines: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = [UnicodeError("label too long"), UnicodeError("label too long"), RuntimeError("a bug")]

    def towards(_: str) -> str:
        if failures:
            raise failures.pop(0)
        return "127.0.0.1"

    monkeypatch.setattr("services.encoder.announcer.host_towards", towards)
    async with announcer(language.url, host="0.0.0.0"):
        await language.until(2)
    assert lines == [
        ("not registered", "UnicodeError: label too long"),
        ("not registered", "RuntimeError: a bug"),
        ("registered", None),
    ]
