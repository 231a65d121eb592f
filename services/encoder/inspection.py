"""What a picture's file is made of, looked at before it is decoded, so that a small file cannot cost much time or memory.

PIL bounds pixels; what it walks through on the way to them it does not. Each limit here refuses files that were measured to
take ten seconds and more, or gigabytes, for a few megabytes of input; each is far above what cameras and programs write.
"""

from __future__ import annotations

import re
import struct

from PIL import Image, TiffImagePlugin, _avif

from services.encoder.kinds import kind_of
from shared.errors import InvalidMedia

MAX_PARTS = 10_000
"""Chunks, segments or blocks of one file, each of which costs the interpreter some microseconds and some memory."""
MAX_SCANS = 64
"""Scans of a JPEG, each of which decodes all of its pixels anew; programs write about ten."""
MAX_JUNK = 2**16
"""Bytes between the segments of a JPEG, or before the numbers of a PPM."""
MAX_METADATA = 2**23
"""Bytes of a JPEG's segments before its pixels."""
MAX_EXIF = 2**20
"""Bytes of EXIF, and of other directories in the form of TIFF."""
MAX_VALUES = 2**18
"""Numbers in the directories of a TIFF or of EXIF: strips, mostly."""
MAX_TILE = 2**24
"""Pixels of one tile of a TIFF, which is decoded whole however small the picture is."""

_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_JPEG_BARE = frozenset((0x01, 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)))  # markers without a segment behind them
_SOS, _EOI, _APP1, _APP2 = 0xDA, 0xD9, 0xE1, 0xE2
_PPM = re.compile(rb"P[0-6fFy]")
_PPM_HEADER = re.compile(rb"P[1-6](?:\s|#[^\r\n]*[\r\n])+\d+(?:\s|#[^\r\n]*[\r\n])+\d+\s")
# Of TIFF: bytes of one value by type, the types of plain bytes, and the tags of directories within directories.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_BYTES, _SHORTS = frozenset((1, 2, 6, 7)), frozenset((3, 8))
_DIRECTORIES = frozenset((34665, 34853, 40965))
_TIFF_COMPRESSIONS = frozenset(
    ("raw", "tiff_ccitt", "group3", "group4", "tiff_lzw", "jpeg", "tiff_adobe_deflate", "tiff_deflate", "packbits")
)


def check_file(data: bytes) -> None:
    """Looks at the bytes, before ``Image.open`` does.

    Raises:
        InvalidMedia: the file is made to be costly, or of a rare kind that is not accepted.
    """
    if data.startswith(b"\x89PNG"):
        _check_png(data)
    elif data.startswith(b"\xff\xd8"):
        _check_jpeg(data)
    elif data.startswith(b"GIF8"):
        _check_gif(data)
    elif kind_of(data) == "AVIF":
        _check_avif(data)
    elif data.startswith((b"II*\0", b"MM\0*")):
        _check_directories(data, "TIFF")
    elif data.startswith(tuple(TiffImagePlugin.PREFIXES)):
        raise InvalidMedia("BigTIFF is not accepted.")
    elif _PPM.match(data) and not _PPM_HEADER.match(data, 0, MAX_JUNK):
        raise InvalidMedia("The bytes are not a picture of a kind of PPM that is accepted.")


def check_opened(image: Image.Image) -> None:
    """Looks at what ``Image.open`` found out, before anything is decoded.

    Raises:
        InvalidMedia: as ``check_file``.
    """
    for tile in image.tile:  # type: ignore[attr-defined]
        # Decoders written in Python hold the interpreter, which everything else needs too: rare kinds of BMP and PPM.
        if tile.codec_name in Image.DECODERS:
            raise InvalidMedia(f"This kind of {image.format} ({tile.codec_name}) is not accepted.")
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        if image.info["compression"] not in _TIFF_COMPRESSIONS:
            raise InvalidMedia(f"TIFF with {image.info['compression']} compression is not accepted.")
        width, length = (image.tag_v2.get(tag, 1) for tag in (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH))
        if not isinstance(width, int) or not isinstance(length, int) or width * length > MAX_TILE:
            raise InvalidMedia(f"The TIFF picture has a tile of {width}x{length}; at most {MAX_TILE} pixels are accepted.")
    if len(image.info.get("exif", b"")) > MAX_EXIF:
        raise InvalidMedia(f"The {image.format} picture has more than {MAX_EXIF} bytes of EXIF.")


def _too_many(kind: str) -> InvalidMedia:
    return InvalidMedia(f"The {kind} picture has more than {MAX_PARTS} parts.")


def _check_png(data: bytes) -> None:
    at = 8
    for _ in range(MAX_PARTS):
        if at + 8 > len(data):
            return
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IEND":
            return
        if kind == b"eXIf":
            _check_directories(data[at + 8 : at + 8 + length], "EXIF")
        at += 12 + length
    raise _too_many("PNG")


def _check_jpeg(data: bytes) -> None:
    """Sees at least the segments that PIL and libjpeg see, which skip what is between them."""
    at, scans, junk, metadata = 2, 0, 0, 0
    exif: list[bytes] = []
    for _ in range(MAX_PARTS):
        marker = _JPEG_MARKER.search(data, at)
        if not scans:
            junk += (marker.start() if marker else len(data)) - at
            if junk > MAX_JUNK:
                raise InvalidMedia(f"The JPEG picture has more than {MAX_JUNK} bytes between its segments.")
        code = data[marker.end() - 1] if marker else _EOI
        if marker is None or (scans and code == _EOI):
            break
        at = marker.end()
        if code in _JPEG_BARE or at + 2 > len(data):
            continue
        length = max(2, struct.unpack_from(">H", data, at)[0])
        if code == _SOS:
            scans += 1
            if scans > MAX_SCANS:
                raise InvalidMedia(f"The JPEG picture has more than {MAX_SCANS} scans.")
        elif not scans:
            metadata += length
            if metadata > MAX_METADATA:
                raise InvalidMedia(f"The JPEG picture has more than {MAX_METADATA} bytes before its pixels.")
            segment = data[at + 2 : at + length]
            if code == _APP1 and segment.startswith(b"Exif\0\0"):
                exif.append(segment[6:])
            elif code == _APP2 and segment.startswith(b"MPF\0"):
                _check_directories(segment[4:], "MPF")
        at += length
    else:
        raise _too_many("JPEG")
    _check_directories(b"".join(exif), "EXIF")


def _check_gif(data: bytes) -> None:
    """Up to the first picture, which is the only one that is decoded."""
    at = 13 + (3 * (2 << (data[10] & 7)) if len(data) > 10 and data[10] & 0x80 else 0)
    within = False  # an extension, which is made of blocks
    for _ in range(MAX_PARTS):
        if at >= len(data) or (not within and data[at] in b",;"):
            return
        if within:
            within = data[at] > 0
            at += 1 + data[at]
        else:
            within = data[at] == ord("!")
            at += 2 if within else 1
    raise _too_many("GIF")


def _check_avif(data: bytes) -> None:
    """Its EXIF, which PIL reads while it opens the file; finding it is the work of the library that PIL has for AVIF."""
    exif: bytes | None = _avif.AvifDecoder(data, "auto", 1).get_info()[4]
    _check_directories(exif or b"", "EXIF")


def _check_directories(data: bytes, kind: str) -> None:
    """The first directory in the form of TIFF, and those in it, do not stand for more than there is.

    Values that do not lie within ``data`` are not read by anybody.
    """
    data = data.removeprefix(b"Exif\0\0").removeprefix(b"Exif\0\0")
    if kind != "TIFF" and len(data) > MAX_EXIF:
        raise InvalidMedia(f"The picture has more than {MAX_EXIF} bytes of {kind}.")
    if len(data) < 8:
        return
    order = ">" if data.startswith(b"MM") else "<"
    offsets = list(struct.unpack_from(f"{order}I", data, 4))
    values = total = 0
    for offset in offsets:
        if offset + 2 > len(data):
            continue
        (entries,) = struct.unpack_from(f"{order}H", data, offset)
        for at in range(offset + 2, min(offset + 2 + 12 * entries, len(data) - 11), 12):
            tag, form, count, value = struct.unpack_from(f"{order}HHII", data, at)
            size = count * _SIZES.get(form, 0)
            if size <= 4 or value + size <= len(data):
                total += size
                values += 0 if form in _BYTES else count
            if tag in _DIRECTORIES:
                offsets.append(value if form not in _SHORTS else value >> 16 if order == ">" else value & 0xFFFF)
        if values > MAX_VALUES or total > len(data) or len(offsets) > len(_DIRECTORIES) + 1:
            raise InvalidMedia(f"The directories of the picture's {kind} hold more than they may.")
