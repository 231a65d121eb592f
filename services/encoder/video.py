"""Bytes to the frames of a video that a family looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.encoder.extras import need
from services.encoder.kinds import describe, kind_of
from services.encoder.media import Video
from services.encoder.sandbox.messages import Done, Found, Order, Piece, Wanted
from services.encoder.sandbox.process import Decoding, Sandbox
from shared.errors import InvalidMedia, media_errors

FORMATS = ("MP4", "MOV", "WebM", "MKV", "AVI", "GIF")
_DEMUXERS = {"MP4": "mov", "WebM": "matroska", "AVI": "avi", "GIF": "gif"}

Choose = Callable[[int, float, float], Sequence[int]]
"""Of so many frames, of which so many are a second, in so many seconds: the numbers of those that are looked at."""


def decode_video(
    data: bytes,
    choose: Choose,
    max_pixels: int,
    max_frames: int,
    max_seconds: float,
    param: str | None = None,
    sandbox: Sandbox | None = None,
) -> Video:
    """The frames of a video that ``choose`` chooses, upright, in its order. Blocks, since another process decodes them.

    They are what transformers' own loader gives, by the same numbers, where that knows how many frames there are. A frame whose
    size differs from the first one's is scaled to it. The file's average rate stands for the times of frames.

    Raises:
        InvalidMedia: not a video, a kind that is not accepted, damaged, cut off, without frames, longer than ``max_seconds``,
            taking more than the sandbox gives; or of the chosen frames there are more than ``max_frames``, or they have more
            than ``max_pixels`` together.
        RuntimeError: the decoder failed.
    """
    kind = kind_of(data)
    if not data:
        raise InvalidMedia("The video is empty (0 bytes).", param=param)
    if kind not in _DEMUXERS:
        raise InvalidMedia(
            f"The bytes are not a video ({describe(data, 'video_url')}); send {', '.join(FORMATS)}.", param=param
        )
    need("av", "video", "Videos", param)
    sandbox = sandbox or Sandbox()
    order = Order("video", _DEMUXERS[kind], len(data), sandbox.effort.seconds, sandbox.effort.memory, longest=max_seconds)
    with sandbox.decoding(order, data, param) as decoding, media_errors(param):
        found = decoding.receive()
        assert isinstance(found, Found)
        while True:
            indices = _chosen(found, choose)
            _check_size(found, indices, max_pixels, max_frames)
            frames, decoded = _read(decoding, indices, max_pixels)
            if frames is not None:
                return Video(frames, found.fps, found.frames / found.fps, found.frames, indices)
            if not decoded:
                raise InvalidMedia("None of the video's frames can be decoded.")
            # Some codecs have frames that are never shown, and were counted.
            found = msgspec.structs.replace(found, frames=decoded)


def _chosen(found: Found, choose: Choose) -> list[int]:
    try:
        indices = [int(index) for index in choose(found.frames, found.fps, found.frames / found.fps)]
    except ZeroDivisionError:
        indices = []  # which is how some processors take it that a video has fewer frames than they look at together
    if not indices:
        raise InvalidMedia(f"The video has {found.frames} frames, too few for this model to look at.")
    if min(indices) < 0 or max(indices) >= found.frames:
        raise RuntimeError(f"frames {min(indices)} to {max(indices)} were chosen of {found.frames}")
    return indices


def _check_size(found: Found, indices: Sequence[int], max_pixels: int, max_frames: int) -> None:
    count, size = len(indices), f"{found.width}x{found.height}"
    if count > max_frames:
        text = f"This model looks at {count} frames of the video; at most {max_frames} are accepted. Send a shorter one."
        raise InvalidMedia(text)
    if count * found.width * found.height > max_pixels:
        text = (
            f"The {count} frames of {size} that this model looks at have more than the {max_pixels} pixels that are accepted."
        )
        raise InvalidMedia(f"{text} Send a smaller or shorter video.")


def _read(decoding: Decoding, indices: Sequence[int], max_pixels: int) -> tuple[NDArray[np.uint8] | None, int]:
    """The frames of these numbers, and how many were decoded for them; None where there are not as many."""
    numbers, frames = sorted(set(indices)), np.empty(0, np.uint8)
    decoding.send(Wanted(numbers, max_pixels // len(indices)))
    read = 0
    while isinstance(answer := decoding.receive(), Piece):
        if not read:
            frames = np.empty((len(numbers), *answer.shape), np.uint8)
        decoding.fill(frames[read].data.cast("B"))
        read += 1
    assert isinstance(answer, Done)
    if read < len(numbers):
        return None, answer.frames
    if numbers != list(indices):  # some families repeat frames, to make the number even
        frames = frames[np.searchsorted(numbers, indices)]
    return frames, answer.frames
