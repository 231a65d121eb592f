"""Bytes to an upright picture."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import ExifTags, Image

from services.encoder.inspection import check_file, check_opened
from shared.errors import InvalidMedia

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# What PIL's decoders raise for bytes that are not a good picture; none of them is a bug of ours.
_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
_FIRST_BYTES = {
    b"\x89PNG": "PNG",
    b"\xff\xd8": "JPEG",
    b"RIFF": "WEBP",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II": "TIFF",
    b"MM": "TIFF",
}
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes an EXIF orientation."""


def decode_image(data: bytes, max_pixels: int, param: str | None = None) -> Image.Image:
    """The first frame of a picture, with its EXIF orientation applied, fully loaded.

    Sixteen-bit grey levels are scaled to eight bits; other modes are left to the model's processor.

    Raises:
        InvalidMedia: not a picture, a format that is not accepted, damaged, or more than ``max_pixels``.
    """
    if not data:
        raise InvalidMedia("The picture is empty (0 bytes).", param=param)
    try:
        check_file(data)
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        check_opened(image)
    except InvalidMedia as error:
        error.param = param
        raise
    except Image.DecompressionBombError as error:
        raise InvalidMedia(f"The picture has more than the {max_pixels} pixels that are accepted.", param=param) from error
    except _DECODER_ERRORS as error:
        raise InvalidMedia(
            f"The bytes are not a picture ({_looks_like(data)}); send {', '.join(FORMATS)}.", param=param
        ) from error
    width, height = image.size
    if width * height > max_pixels:
        raise InvalidMedia(f"The picture is {width}x{height}; at most {max_pixels} pixels are accepted.", param=param)
    try:
        if image.format == "PNG":
            # Loading does not look at the checksums of pixel data; verifying does, but leaves the image unusable.
            Image.open(io.BytesIO(data), formats=("PNG",)).verify()
        image.load()
    except _DECODER_ERRORS as error:
        raise InvalidMedia(f"The {image.format} picture is damaged: {error}.", param=param) from error
    if image.mode == "F":
        raise InvalidMedia("Pictures of floating-point numbers are not accepted.", param=param)
    return _to_eight_bits(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    """As the camera was held. Only the orientation is read of EXIF; where EXIF is broken, there is none."""
    try:
        method = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _DECODER_ERRORS:
        method = None
    return image if method is None else image.transpose(method)


def _to_eight_bits(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        return image.convert("I").point(lambda level: level / 256).convert("L")
    return image


def _looks_like(data: bytes) -> str:
    """What the first bytes suggest, for the error message."""
    start = data[:256].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "they look like an HTML page"
    if start.startswith((b"<svg", b"<?xml")):
        return "they look like SVG, which is not accepted"
    if data[4:12] in (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftypavif"):
        return "they look like HEIC or AVIF, which is not accepted"
    if start.startswith(b"%pdf"):
        return "they look like a PDF"
    for first, file_format in _FIRST_BYTES.items():
        if data.startswith(first):
            return f"they begin like {file_format}, but are damaged, or made to be costly to read"
    return f"{len(data)} bytes of an unknown format"
