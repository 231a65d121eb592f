"""Data URLs in all the ways that people write them."""

from __future__ import annotations

import base64
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.dataurl import MAX_ESCAPES, decode_data_url, is_data_url
from shared.errors import InvalidMedia

DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"data:;base64,{TEXT}",
        f"DATA:image/png;BASE64,{TEXT}",
        f"data:image/png;name=a.png;charset=utf-8;base64,{TEXT}",
        f"data:text/html;base64,{TEXT}",
        f"data:application/pdf;charset=UTF-8;base64,{TEXT}",
        f"data:image/png;base64;charset=utf-8,{TEXT}",
        f"data:audio/ogg; codecs=opus; base64,{TEXT}",
        f"data:image/svg+xml;charset=utf-8;BASE64 ,{TEXT}",
        f"data:;charset=base64;base64,{TEXT}",
        "data:image/png;base64,\n" + "\n".join(TEXT[at : at + 76] for at in range(0, len(TEXT), 76)) + "\n",
        "data:image/png;base64," + TEXT.rstrip("="),
        "data:image/png;base64," + base64.urlsafe_b64encode(DATA).decode(),
        "data:image/png;base64," + TEXT[:40] + "\r\n " + TEXT[40:],
        "data:image/png;base64," + TEXT.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        "data:application/octet-stream," + "".join(f"%{byte:02x}" for byte in DATA),
        "data:base64," + "".join(f"%{byte:02X}" for byte in DATA),
        "data:;charset=base64," + "".join(f"%{byte:02X}" for byte in DATA),
    ],
)
def test_good_ones_give_their_bytes(url: str) -> None:
    assert is_data_url(url)
    assert decode_data_url(url, 1000) == DATA


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64", "comma"),
        ("data:image/png;base64,", "empty"),
        ("data:" + "x" * 5000 + ";base64,AAAA", "4096 characters"),
        ("data:image/png;base64,!!!!", "base64"),
        ("data:image/png;base64,A", "base64"),
        ("data:,", "empty"),
        (f"data:image/png;base64,{TEXT}", "accepted"),
        ("data:," + "a" * 200, "accepted"),
        ("data:," + "%41" * (MAX_ESCAPES + 1), "escapes"),
        ("data:;base64," + "%41" * (MAX_ESCAPES + 1), "accepted|escapes"),
        ("data:," + "%" * (MAX_ESCAPES + 1), "escapes"),
    ],
)
def test_bad_ones_say_why(url: str, reason: str) -> None:
    with pytest.raises(InvalidMedia, match=reason) as caught:
        decode_data_url(url, 100, "messages.0")
    assert caught.value.param == "messages.0"


@given(
    st.binary(min_size=1, max_size=300),
    st.sampled_from(["\n", " ", "\r\n", ""]),
    st.integers(1, 80),
    st.booleans(),
    st.booleans(),
)
def test_any_bytes_in_any_spelling(data: bytes, between: str, every: int, urlsafe: bool, padded: bool) -> None:
    text = (base64.urlsafe_b64encode if urlsafe else base64.b64encode)(data).decode()
    text = text if padded else text.rstrip("=")
    url = "data:;base64," + between.join(text[at : at + every] for at in range(0, len(text), every))
    assert decode_data_url(url, 300) == decode_data_url(url.encode(), 300) == data


@given(st.text("AZaz09+/-_= \n!%4ü", max_size=12))
def test_whatever_is_taken_is_what_the_standard_library_takes(text: str) -> None:
    plain = unquote_to_bytes(text).translate(bytes.maketrans(b"-_", b"+/"), b" \n").rstrip(b"=")
    try:
        wanted = base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except ValueError:
        wanted = b""
    try:
        found = decode_data_url(f"data:;base64,{text}", 300)
    except InvalidMedia:
        found = b""
    assert found == wanted


def test_line_ends_are_taken_out_across_pieces() -> None:
    data = bytes(range(256)) * 9000
    text = base64.encodebytes(data).decode()
    assert len(text) > 2 * 2**20
    assert decode_data_url(f"data:;base64,{text}", 2 * len(data)) == data
