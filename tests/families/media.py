"""Small pictures, sounds and videos that differ in what they show, from a seed."""

from __future__ import annotations

import io
import wave

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.chats import Film, Sound, encoded


def picture(seed: int, width: int = 48, height: int = 32) -> bytes:
    """The PNG of a smooth field of colours."""
    corners = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return encoded(Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC))


def samples(seed: int, seconds: float, rate: int = 16_000) -> NDArray[np.float32]:
    """Five tones at once."""
    rng = np.random.default_rng(seed)
    times = np.arange(round(seconds * rate)) / rate
    tones = sum(rng.uniform(0.02, 0.2) * np.sin(2 * np.pi * pitch * times + 1) for pitch in rng.uniform(100, 4000, 5))
    return np.asarray(tones, dtype=np.float32)


def sound(seed: int, seconds: float = 0.7, rate: int = 16_000) -> Sound:
    """A WAV file of such tones, in 16 bits of one channel."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples(seed, seconds, rate) * 32_767).astype("<i2").tobytes())
    return Sound(buffer.getvalue())


def film(seed: int, frames: int = 20, fps: int = 8, width: int = 64, height: int = 48) -> Film:
    """An MP4 file of one such picture turning into another."""
    first, last = (np.asarray(Image.open(io.BytesIO(picture(2 * seed + end, width, height)))) for end in (0, 1))
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=fps, options={"qscale": "2"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for at in np.linspace(0, 1, frames):
            pixels = (first * (1 - at) + last * at).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return Film(buffer.getvalue())
