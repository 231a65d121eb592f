"""Bodies of chat requests: whatever is cut out of them, the request is the one that the whole body is."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from services.language.api import body as module
from services.language.api.body import SMALL, bytes_of, cut, off_loop, parse, validate
from services.language.api.schemas import ChatCompletionRequest
from shared.errors import InvalidRequest, ModelNotFound

PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 8
LONG = 24


@pytest.fixture(autouse=True)
def long_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs are cut that are as short as those of these tests."""
    monkeypatch.setattr(module, "_LONG", LONG)


def plainly(raw: bytes) -> Any:
    """What the body says without anything being cut out: the request's fields, or the error."""
    try:
        return validate(raw, ChatCompletionRequest, 100_000).model_dump()
    except InvalidRequest as error:
        return error.message, error.param


def cutting(raw: bytes) -> Any:
    """The same by way of ``parse``, with the URLs put back."""
    try:
        body = parse(raw, "model", 100_000)
    except InvalidRequest as error:
        return error.message, error.param
    fields = body.model_dump()
    for message in fields["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            for holder in part.values():
                for name in ("url", "data"):
                    if isinstance(holder, dict) and name in holder and body.inline(holder[name]) is not None:
                        holder[name] = bytes(body.inline(holder[name])).decode()
    return fields


def asked(*parts: object, **fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": list(parts)}], **fields}, ensure_ascii=False).encode()


def shown(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_a_picture_is_cut_out_and_comes_back_as_the_bytes_that_it_is() -> None:
    url = PICTURE[:-1] + "="
    body = parse(asked(shown(url), {"type": "text", "text": "What is it?"}), "model", 100_000)
    assert isinstance(body.messages[0].content, list)
    short = body.messages[0].content[0].url  # type: ignore[union-attr]
    assert len(short) < len(url)
    assert body.inline(short) == url.encode()


@pytest.mark.parametrize(
    "raw",
    [
        asked(shown(PICTURE), shown("https://a/b.png"), shown(PICTURE + "B"), {"type": "text", "text": "Ümläut"}),
        asked({"type": "image_url", "image_url": PICTURE}),
        asked({"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}}),
        asked({"type": "input_audio", "input_audio": {"data": "UklGRg" * 20, "format": "wav"}}),
        asked({"type": "video_url", "video_url": {"url": PICTURE.upper()}}),
        asked(shown("  " + PICTURE)),
        asked(shown(PICTURE + "   ")),
        asked(shown("data:," + "ü" * 60)),
    ],
)
def test_items_of_every_kind(raw: bytes) -> None:
    assert isinstance(plainly(raw), dict)
    assert cutting(raw) == plainly(raw)


@pytest.mark.parametrize(
    "raw",
    [
        asked({"type": "text", "text": PICTURE}, shown(PICTURE)),
        asked(shown("https://a"), metadata={"a": PICTURE}),
        asked(shown("https://a"), metadata={PICTURE: "a"}),
        asked(shown("https://a"), stop=PICTURE),
        asked(shown("https://a"), tools=[{"type": "function", "function": {"name": "f", "description": PICTURE}}]),
        json.dumps({"messages": [{"role": "user", "content": PICTURE}]}).encode(),
    ],
)
def test_what_only_looks_like_a_picture_stays_text(raw: bytes) -> None:
    assert isinstance(plainly(raw), dict)
    assert cutting(raw) == plainly(raw)


GOOD = asked(shown(PICTURE)).decode()


@pytest.mark.parametrize(
    "raw",
    [
        asked(shown(PICTURE), temperature=3),
        asked(shown(PICTURE), {"type": "image_url"}),
        asked({"type": PICTURE}),
        GOOD.replace("Ggo", "Gg\n", 1).encode(),
        GOOD.replace("Ggo", "Gg\x00", 1).encode(),
        GOOD.replace("Ggo", "Gg\\n", 1).encode(),
        GOOD.replace("Ggo", 'Gg\\"', 1).encode(),
        GOOD.replace("Ggo", "Gg\\u0041", 1).encode(),
        GOOD.replace("Ggo", "Ggü", 1).encode(),
        GOOD.encode().replace(b"Ggo", b"Gg\xff", 1),
        GOOD.encode().replace(b"Ggo", b"Gg\x7f", 1),
        GOOD.replace('"data:', '"\\"data:').encode(),
        GOOD.replace('"data:', '"\\\\"data:').encode(),
        GOOD.replace('"data:', '"x"data:').encode(),
        GOOD.replace('"url": ', f'"url": "{PICTURE}", "url": ').encode(),
        GOOD.replace('"url": ', '"url": "https://a", "url" :\n').encode(),
        GOOD[:-1].encode(),
        GOOD[: GOOD.index("Ggo") + 30].encode(),
        (GOOD + GOOD).encode(),
    ],
)
def test_whatever_is_wrong_or_strange_is_told_as_by_the_whole_body(raw: bytes) -> None:
    assert cutting(raw) == plainly(raw)


TEXTS = st.one_of(
    st.sampled_from(["data:", PICTURE, PICTURE + " ", " " + PICTURE, "DATA:,abcdefghijklmnopqrstuvwxyz", "https://a"]),
    st.builds("data:{}".format, st.text('aB+/=;, \\"ü\n', min_size=10, max_size=60)),
    st.text(max_size=40),
)
PARTS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
    st.builds(shown, TEXTS),
    st.builds(lambda data: {"type": "input_audio", "input_audio": {"data": data}}, TEXTS),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies in any spelling, some of them damaged."""
    fields = draw(st.dictionaries(st.sampled_from(["stop", "user", "metadata", "temperature"]), TEXTS))
    raw = json.dumps(
        {"messages": [{"role": "user", "content": draw(st.lists(PARTS, max_size=4))}], **fields},
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 0, 3])),
    ).encode()
    for _ in range(draw(st.integers(0, 2))):
        at, damage = draw(st.integers(0, len(raw))), draw(st.sampled_from([b'"', b"\\", b"d", b'"data:', b"\xc3", b"\n", b""]))
        raw = raw[:at] + damage + raw[at + draw(st.integers(0, 2)) :]
    return raw


@given(bodies())
def test_a_request_is_the_same_whether_anything_is_cut_or_not(raw: bytes) -> None:
    assert cutting(raw) == plainly(raw)


def test_what_stands_for_a_picture_cannot_be_guessed() -> None:
    (first,), (second,) = cut(asked(shown(PICTURE)))[1], cut(asked(shown(PICTURE)))[1]
    assert first != second
    body = parse(asked(shown(first), shown(PICTURE)), "model", 100_000)
    assert isinstance(body.messages[0].content, list)
    assert body.inline(first) is None


def test_another_model_is_refused_beside_a_picture_too() -> None:
    with pytest.raises(ModelNotFound):
        parse(asked(shown(PICTURE), model="other"), "model", 100_000)


async def test_small_bodies_are_parsed_by_the_event_loop_and_large_ones_are_not() -> None:
    here = threading.get_ident()
    assert await off_loop(lambda _: threading.get_ident(), bytes(SMALL)) == here
    assert await off_loop(lambda _: threading.get_ident(), bytes(SMALL + 1)) != here


async def test_a_request_does_not_keep_its_body() -> None:
    chunks = asyncio.Queue[dict[str, Any]]()
    for chunk, more in ((b"ab", True), (b"c", False)):
        chunks.put_nowait({"type": "http.request", "body": chunk, "more_body": more})
    request = Request({"type": "http", "headers": []}, chunks.get)
    assert await bytes_of(request) == b"abc"
    assert not hasattr(request, "_body")
