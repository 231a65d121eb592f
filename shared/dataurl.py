"""``data:`` URLs (RFC 2397) to bytes."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

from shared.errors import InvalidMedia

MAX_ESCAPES = 2**18
"""Characters that are written as ``%41``: decoding makes an object of each, so that 64 MB of them would take gigabytes."""


# Base64 for URLs writes two characters in another way; and line ends are common.
_STANDARD, _SPACE = bytes.maketrans(b"-_", b"+/"), b" \t\n\r\f\v"


def is_data_url(url: str) -> bool:
    """Whether ``url`` is a ``data:`` URL; the scheme's case does not matter."""
    return url[:5].lower() == "data:"


def decode_data_url(url: str, max_bytes: int, param: str | None = None) -> bytes:
    """The bytes that a ``data:`` URL carries. The declared media type is not trusted, so it is not looked at.

    Raises:
        InvalidMedia: no comma, broken base64, nothing in it, more than ``max_bytes``, or too many escapes.
    """
    head, comma, payload = url[5:].partition(",")
    if not comma:
        raise InvalidMedia("The data URL has no comma between its media type and its data.", param=param)
    is_base64 = head.rpartition(";")[2].strip().lower() == "base64"
    if is_base64 and len(payload) // 4 * 3 > max_bytes + 3:
        raise InvalidMedia(f"The data URL holds more than the {max_bytes} bytes that are accepted.", param=param)
    if payload.count("%") > MAX_ESCAPES:
        raise InvalidMedia(f"The data URL has more than {MAX_ESCAPES} escapes; send base64 as it is.", param=param)
    if is_base64:
        try:
            text = payload.encode("ascii") if "%" not in payload else unquote_to_bytes(payload)
            text = text.translate(_STANDARD, _SPACE).rstrip(b"=")
            data = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidMedia(f"The data URL is not valid base64: {error}.", param=param) from error
    else:
        data = unquote_to_bytes(payload)
    if not data:
        raise InvalidMedia("The data URL is empty.", param=param)
    if len(data) > max_bytes:
        raise InvalidMedia(f"The data URL holds {len(data)} bytes; at most {max_bytes} are accepted.", param=param)
    return data
