"""Bytes to an upright picture."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import ExifTags, Image

from services.encoder.extras import need
from services.encoder.inspection import check_file, check_opened
from services.encoder.kinds import describe, kind_of
from services.encoder.sandbox.messages import Order
from services.encoder.sandbox.process import Sandbox
from shared.errors import InvalidMedia, media_errors

FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
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


def decode_image(data: bytes, max_pixels: int, param: str | None = None, sandbox: Sandbox | None = None) -> Image.Image:
    """The first frame of a picture, with its EXIF orientation applied, fully loaded.

    Sixteen-bit grey levels are scaled to eight bits; other modes are left to the model's processor. HEIC is decoded by another
    process, of this ``sandbox``.

    Raises:
        InvalidMedia: not a picture, a format that is not accepted, damaged, or more than ``max_pixels``.
        RuntimeError: the decoder failed.
    """
    if not data:
        raise InvalidMedia("The picture is empty (0 bytes).", param=param)
    kind = kind_of(data)
    if kind == "HEIC":
        return _decode_heic(data, max_pixels, param, sandbox or Sandbox())
    # PIL's decoder of AVIF says by this that a file is damaged; of any other it would be a bug.
    errors = (*_DECODER_ERRORS, RuntimeError) if kind == "AVIF" else _DECODER_ERRORS
    try:
        check_file(data)
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        check_opened(image)
    except InvalidMedia as error:
        error.param = param
        raise
    except Image.DecompressionBombError as error:
        raise InvalidMedia(f"The picture has more than the {max_pixels} pixels that are accepted.", param=param) from error
    except errors as error:
        text = f"The bytes are not a picture ({describe(data, 'image_url')}); send {', '.join(FORMATS)}."
        raise InvalidMedia(text, param=param) from error
    width, height = image.size
    if width * height > max_pixels:
        raise InvalidMedia(f"The picture is {width}x{height}; at most {max_pixels} pixels are accepted.", param=param)
    try:
        if image.format == "PNG":
            # Loading does not look at the checksums of pixel data; verifying does, but leaves the image unusable.
            Image.open(io.BytesIO(data), formats=("PNG",)).verify()
        image.load()
    except errors as error:
        raise InvalidMedia(f"The {image.format} picture is damaged: {error}.", param=param) from error
    if image.mode == "F":
        raise InvalidMedia("Pictures of floating-point numbers are not accepted.", param=param)
    return _to_eight_bits(_upright(image))


def _decode_heic(data: bytes, max_pixels: int, param: str | None, sandbox: Sandbox) -> Image.Image:
    need("pillow_heif", "heif", "HEIC pictures", param)
    order = Order("heic", "", len(data), sandbox.effort.seconds, sandbox.effort.memory, max_pixels=max_pixels)
    with sandbox.decoding(order, data, param) as decoding, media_errors(param):
        pixels = decoding.only(np.uint8)
    return Image.fromarray(pixels)


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
