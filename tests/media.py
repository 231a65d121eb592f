"""Sounds and videos for tests."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import av
import numpy as np
import soundfile
from numpy.typing import NDArray

Frame = NDArray[np.uint8]

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def tone(seconds: float, rate: int, hertz: float = 440.0, channels: int = 1) -> NDArray[np.float32]:
    """A sine, ``(n, channels)``, with a little noise, so that no two samples are equal."""
    at = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(0).standard_normal((len(at), channels)) * 0.01
    return (0.5 * np.sin(2 * np.pi * hertz * at)[:, None] + noise).astype(np.float32)


def sound_file(samples: NDArray[np.float32], rate: int, form: str = "WAV", subtype: str | None = None) -> bytes:
    """Samples ``(n, channels)`` as libsndfile writes them."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form, subtype=subtype)
    return buffer.getvalue()


def sound_track(samples: NDArray[np.float32], rate: int, form: str = "mp4", codec: str = "aac") -> bytes:
    """Samples ``(n, 1)`` in a container, as FFmpeg writes them."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate)
        for part in [*resampler.resample(frame), None]:
            container.mux(stream.encode(part))
    return buffer.getvalue()


def picture(number: int, width: int = 64, height: int = 48) -> Frame:
    """A frame that tells its number by its grey, and its upper left corner by red."""
    pixels = np.full((height, width, 3), 40 + 3 * number % 200, np.uint8)
    pixels[: height // 2, : width // 2] = RED
    return pixels


def video_file(
    frames: Sequence[Frame] | int = 30,
    form: str = "mp4",
    codec: str = "libx264",
    fps: int = 25,
    times: Callable[[int], int] | None = None,
    rotation: int = 0,
    sound: bool = False,
    pixels: str = "yuv420p",
    **options: str,
) -> bytes:
    """A video of these frames, or of so many. ``times`` says when a frame is shown, in thousandths of a second; ``rotation`` is
    what players are told, counterclockwise; ``options`` are the container's."""
    shown = [picture(number) for number in range(frames)] if isinstance(frames, int) else frames
    buffer = io.BytesIO()
    with _priority_kept(), av.open(buffer, "w", format=form, options=options) as container:
        stream: Any = container.add_stream(codec, rate=fps)
        stream.height, stream.width = shown[0].shape[:2]
        stream.pix_fmt = pixels
        if rotation:
            stream.set_display_rotation(rotation)
        track: Any = container.add_stream("aac", rate=16_000, layout="mono") if sound else None
        for number, pixels_of in enumerate(shown):
            frame = av.VideoFrame.from_ndarray(pixels_of, format="rgb24").reformat(format=pixels)
            if times is not None:
                frame.pts, frame.time_base = times(number), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if track is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
            silence.sample_rate = 16_000
            container.mux([*track.encode(silence), *track.encode()])
    return buffer.getvalue()


@contextmanager
def _priority_kept() -> Iterator[None]:
    """SVT-AV1 takes the highest real-time priority for the thread that encodes, where it may, and leaves it so, for that thread
    and all processes that it starts later."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def colour_at(frame: Frame, x: float, y: float) -> tuple[int, int, int]:
    """The colour of a frame at a place, as parts of its width and height, rounded to full and none."""
    pixel = frame[int(y * frame.shape[0]), int(x * frame.shape[1])]
    red, green, blue = (255 if value > 160 else 0 for value in pixel.tolist())
    return red, green, blue
