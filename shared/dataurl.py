"""``data:`` URLs (RFC 2397) to bytes."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

from shared.errors import InvalidMedia

MAX_HEAD = 4096
"""Characters of what stands before the data: the media type and its parameters."""

MAX_ESCAPES = 2**18
"""Characters that are written as ``%41``: decoding makes an object of each, so that 64 MB of them would take gigabytes."""


# Base64 for URLs writes two characters in another way; and line ends are common.
_STANDARD, _SPACE = bytes.maketrans(b"-_", b"+/"), b" \t\n\r\f\v"


def is_data_url(url: str) -> bool:
    """Whether ``url`` is a ``data:`` URL; the scheme's case does not matter."""
    return url[:5].lower() == "data:"


def decode_data_url(url: str, max_bytes: int, param: str | None = None) -> bytes:
    """The bytes that a ``data:`` URL carries. The declared media type is not trusted, so it is not looked at. ``base64`` counts
    wherever it stands among the parameters, though it should be the last one.

    Raises:
        InvalidMedia: no comma, broken base64, nothing in it, more than ``max_bytes``, or too many escapes.
    """
    comma = url.find(",", 0, MAX_HEAD)
    if comma < 0:
        text = f"The data URL has no comma between its media type and its data, or more than {MAX_HEAD} characters before it."
        raise InvalidMedia(text, param=param)
    head, payload = url[5:comma], url[comma + 1 :]
    is_base64 = "base64" in [parameter.strip().lower() for parameter in head.split(";")[1:]]
    if is_base64 and len(payload) // 4 * 3 > max_bytes + 3:
        raise InvalidMedia(f"The data has more than the {max_bytes} bytes that are accepted.", param=param)
    if payload.count("%") > MAX_ESCAPES:
        raise InvalidMedia(f"The data has more than {MAX_ESCAPES} escapes; send base64 as it is.", param=param)
    if is_base64:
        try:
            raw = payload.encode("ascii") if "%" not in payload else unquote_to_bytes(payload)
            raw = raw.translate(_STANDARD, _SPACE).rstrip(b"=")
            data = base64.b64decode(raw + b"=" * (-len(raw) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidMedia(f"The data is not valid base64: {error}.", param=param) from error
    else:
        data = unquote_to_bytes(payload)
    if not data:
        raise InvalidMedia("The data is empty.", param=param)
    if len(data) > max_bytes:
        raise InvalidMedia(f"The data has {len(data)} bytes; at most {max_bytes} are accepted.", param=param)
    return data
