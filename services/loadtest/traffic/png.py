"""PNG files that differ in their first row of pixels, each made in microseconds whatever its size.

A PNG is a deflate stream, and such a stream may be put together from pieces: the row that differs goes in as it is, and what
follows was compressed once. Only checksums are made anew.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ZLIB_HEADER = b"\x78\x01"
_ADLER_BASE = 65521
_END = b"\0\0\0\0IEND\xaeB\x60\x82"
_AS_IT_IS, _AS_ABOVE = 0, 2  # filters of PNG, the first byte of each row


class Template:
    """A picture, all but its first ``band`` rows of pixels, which are equal to each other.

    ``pixels`` are ``(height, width, 3)`` of 8 bits; their first ``band`` rows are ignored.
    """

    def __init__(self, pixels: NDArray[np.uint8], band: int = 1) -> None:
        height, width, _ = pixels.shape
        self.width = width
        below = pixels[band:].reshape(height - band, 3 * width)
        rows = np.empty((height - 1, 1 + 3 * width), np.uint8)
        rows[: band - 1] = 0
        rows[:, 0] = _AS_ABOVE
        rows[band - 1, 0] = _AS_IT_IS  # so that nothing below depends on the band
        rows[band - 1, 1:] = below[0]
        rows[band:, 1:] = below[1:] - below[:-1]
        raw = rows.tobytes()
        packer = zlib.compressobj(9, wbits=-15)
        self._length = len(raw)
        self._adler = zlib.adler32(raw)
        self._rest = _chunk(b"IDAT", packer.compress(raw) + packer.flush())
        self._head = _SIGNATURE + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))

    def png(self, row: bytes) -> bytes:
        """The file, with ``row`` (3 bytes a pixel) as each row of the band."""
        if len(row) != 3 * self.width:
            raise ValueError(f"a row of {self.width} pixels has {3 * self.width} bytes, not {len(row)}")
        raw = b"\0" + row
        stored = b"\0" + struct.pack("<HH", len(raw), len(raw) ^ 0xFFFF) + raw  # a block of deflate that is not compressed
        adler = _together(zlib.adler32(raw), self._adler, self._length)
        first, last = _chunk(b"IDAT", _ZLIB_HEADER + stored), _chunk(b"IDAT", struct.pack(">I", adler))
        return b"".join((self._head, first, self._rest, last, _END))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))


def _together(before: int, after: int, length: int) -> int:
    """The Adler-32 of two byte strings, one behind the other, from those of each and the second one's length."""
    low = (before & 0xFFFF) - 1
    high = (before >> 16) + (after >> 16) + length * low
    return (high % _ADLER_BASE) << 16 | (low + (after & 0xFFFF)) % _ADLER_BASE
