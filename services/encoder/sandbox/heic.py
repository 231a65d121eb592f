"""HEIC pictures, as phones take them."""

from __future__ import annotations

import io

import numpy as np
import pillow_heif

from services.encoder.sandbox.channel import Channel, Refusal
from services.encoder.sandbox.messages import Done, Order

WORD = "picture"


def decode(channel: Channel, order: Order, data: bytes) -> None:
    """Delivers the picture, upright, of eight bits: grey, grey with alpha, RGB or RGBA.

    Raises:
        Refusal: it is no good picture, or too large.
    """
    try:
        file = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=True)
        width, height = file.size
        if width * height > order.max_pixels:
            raise Refusal(f"The picture is {width}x{height}; at most {order.max_pixels} pixels are accepted.")
        pixels = np.asarray(file.to_pillow())
    except (RuntimeError, ValueError, SyntaxError, EOFError, OSError) as error:  # libheif's ways to say so
        raise Refusal(f"The HEIC picture is damaged, or of a kind that is not accepted: {error}.") from error
    channel.deliver(pixels)
    channel.say(Done())
