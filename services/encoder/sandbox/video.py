"""Videos: how many frames there are, and then those that are wanted."""

from __future__ import annotations

import msgspec
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from services.encoder.sandbox.channel import Channel, Refusal, check_length
from services.encoder.sandbox.container import VIDEO_CODECS, Survey, check_codec, is_cover, opened, survey
from services.encoder.sandbox.messages import Done, Found, Order, Wanted

WORD = "video"
_RATE = 24.0  # frames a second, where nothing tells
_LEAST, _MOST = (
    0.9,
    1.1,
)  # of the rate that the frames' times show: where it ends, the last one may not say how long it is shown


def decode(channel: Channel, order: Order, data: bytes) -> None:
    """Tells what there is, then decodes what is wanted of it, as often as the parent asks.

    Raises:
        Refusal: it is no good video.
    """
    with opened(data, order.form, WORD) as container:
        channel.say(_look(container, order.longest))
    while line := channel.line():
        wanted = msgspec.json.decode(line, type=Wanted)
        with opened(data, order.form, WORD) as container:
            channel.say(Done(_deliver(channel, container, wanted)))


def _stream_of(container: InputContainer) -> VideoStream:
    for stream in container.streams.video:
        if not is_cover(stream):
            check_codec(stream, VIDEO_CODECS, WORD)
            # More threads would decode more frames at once, and so take more memory; and others have work too.
            stream.codec_context.thread_count = 1
            return stream
    if container.streams.audio:
        raise Refusal("The file has no video in it, only sound; send that as audio_url.")
    raise Refusal("The file has no video in it.")


def _look(container: InputContainer, longest: float) -> Found:
    stream = _stream_of(container)
    # What the header says of it is often nothing, and counts what is not shown.
    there = survey(container, stream, WORD, longest)
    if not there.packets:
        raise Refusal("The video has no frames.")
    fps = _rate(stream, there)
    check_length(there.packets / fps, longest, WORD)
    return Found(there.packets, fps, stream.codec_context.width, stream.codec_context.height)


def _rate(stream: VideoStream, there: Survey) -> float:
    """Frames a second, on average: as the header says, unless their times contradict it, as in recordings of screens."""
    said = float(stream.average_rate or stream.guessed_rate or 0)
    if there.seconds <= 0:
        return said or _RATE
    least, most = (count / there.seconds for count in (there.packets - 1, there.packets))
    return said if _LEAST * least <= said <= _MOST * most else most


def _deliver(channel: Channel, container: InputContainer, wanted: Wanted) -> int:
    """Decodes up to the last frame that is wanted, and delivers all that are; returns how many were decoded."""
    numbers, last = frozenset(wanted.frames), wanted.frames[-1]
    decoded, size = 0, None
    for frame in container.decode(_stream_of(container)):
        if decoded in numbers:
            size = size or (frame.width, frame.height)
            if size[0] * size[1] > wanted.max_pixels:
                raise Refusal(f"The video has frames of {size[0]}x{size[1]}, larger than it says.")
            channel.deliver(_upright(frame, *size))
        decoded += 1
        if decoded > last:
            break
    return decoded


def _upright(frame: VideoFrame, width: int, height: int) -> NDArray[np.uint8]:
    """A frame's pixels, RGB, scaled to the size of the first one, which others may not have, and turned as it is shown."""
    if (frame.width, frame.height) != (width, height):
        frame = frame.reformat(width=width, height=height)
    pixels = frame.to_ndarray(format="rgb24")
    return np.rot90(pixels, frame.rotation // 90)
