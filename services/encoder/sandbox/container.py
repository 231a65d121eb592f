"""Containers, opened by FFmpeg from memory: by the one demuxer that the first bytes ask for, and only codecs that are meant."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import av
import av.subtitles.codeccontext  # which PyAV would load for a file with subtitles, when nothing can be loaded any more
import av.subtitles.stream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition, Stream

from services.encoder.sandbox.channel import Refusal, check_length

VIDEO_CODECS = frozenset(
    {"h264", "hevc", "vp8", "vp9", "libdav1d", "av1"}
    | {"mpeg4", "mpeg2video", "mpeg1video", "h263", "mjpeg", "png", "prores", "gif"}
)
SOUND_CODECS = frozenset(
    {"aac", "mp3float", "mp3", "opus", "libopus", "vorbis", "flac", "alac", "ac3", "eac3", "amrnb", "amrwb"}
    | {"pcm_u8", "pcm_mulaw", *(f"pcm_{form}{order}" for form in ("s16", "s24", "s32", "f32") for order in ("le", "be"))}
)
_OPTIONS = {
    "codec_whitelist": ",".join(sorted(VIDEO_CODECS | SOUND_CODECS)),
    "protocol_whitelist": "none",
    "max_streams": "64",
}
_SLACK, _PART = 0.5, 0.9  # seconds, and part of the whole, by which a container may overstate how long it is


@contextmanager
def opened(data: bytes, form: str, word: str) -> Iterator[InputContainer]:
    """Around the use of a container in ``data``, of which ``word`` is wanted.

    Raises:
        Refusal: FFmpeg cannot read it, now or inside.
        MemoryError: it would take more than there is.
    """
    try:
        with av.open(
            io.BytesIO(data), "r", format=form, options=_OPTIONS, metadata_errors="ignore", io_open=_reaches_out
        ) as container:
            yield container
    except MemoryError:
        raise
    except (av.FFmpegError, ValueError, OverflowError) as error:
        raise Refusal(f"The {word} is damaged, or of a kind that is not accepted: {_text(error)}.") from error


def _reaches_out(url: str, *_: object) -> NoReturn:
    raise ValueError(f"it refers to another file, {url!r}")


def _text(error: Exception) -> str:
    return (error.strerror if isinstance(error, av.FFmpegError) else None) or str(error) or type(error).__name__


def check_codec(stream: Stream, accepted: frozenset[str], word: str) -> None:
    """Raises Refusal where a stream's codec is none of ``accepted``."""
    name = stream.codec_context.name if stream.codec_context is not None else "unknown"
    if name not in accepted:
        raise Refusal(f"The {word} is coded as {name}, which is not accepted.")


def is_cover(stream: Stream) -> bool:
    """Whether a video stream is but the picture on a record's sleeve."""
    return bool(stream.disposition & Disposition.attached_pic)


@dataclass
class Survey:
    """What there is of a stream, or of all, without what is not to be shown: packets, and from which second to which."""

    packets: int = 0
    begin: float = math.inf
    end: float = -math.inf

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin)

    def add(self, packet: Packet[Stream]) -> None:
        self.packets += 1
        time = packet.dts if packet.pts is None else packet.pts
        if time is not None:
            unit = float(packet.time_base)
            self.begin, self.end = min(self.begin, time * unit), max(self.end, (time + (packet.duration or 0)) * unit)


def survey(container: InputContainer, stream: Stream, word: str, longest: float) -> Survey:
    """Reads a whole container, decoding nothing; returns what there is of ``stream``.

    Raises:
        Refusal: it lasts more than ``longest`` seconds, or its end is missing.
    """
    everything, wanted = Survey(), Survey()
    for packet in container.demux():
        if packet.dts is None and not packet.size:
            continue  # it stands for the end of a stream
        if packet.is_corrupt:
            raise Refusal(f"The {word} is cut off or damaged.")
        if packet.is_discard:
            continue
        everything.add(packet)
        check_length(everything.seconds, longest, word)
        if packet.stream_index == stream.index:
            wanted.add(packet)
    # Counted from zero, since the first packets may be there for the sake of later ones only.
    expected = ((container.start_time or 0) + (container.duration or 0)) / av.time_base
    if everything.packets and everything.end < _PART * expected - _SLACK:
        raise Refusal(f"The {word} is cut off: of its {expected:.1f} seconds there are {everything.end:.1f}.")
    return wanted
