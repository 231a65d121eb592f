"""Bytes to frames: the right ones, upright, by the numbers that transformers gives them; and no container may cost much."""

from __future__ import annotations

import contextlib
import io
import struct
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image
from transformers.video_utils import VideoMetadata, load_video

from services.encoder.media import Video
from services.encoder.sandbox.process import Effort, Sandbox
from services.encoder.video import Choose, decode_video
from shared.errors import InvalidMedia
from tests.chats import encoded
from tests.media import BLUE, GREEN, RED, WHITE, colour_at, picture, sound_file, sound_track, tone, video_file
from tests.processes import decoding_workers

MAX_PIXELS, MAX_FRAMES, LONGEST = 10**8, 100, 3600.0


def spread(count: int) -> Choose:
    """Chooses so many frames, from the first to the last."""
    return lambda total, fps, duration: np.linspace(0, total - 1, count).round().astype(int).tolist()


def decoded(data: bytes, choose: Choose | None = None) -> Video:
    return decode_video(data, choose or (lambda total, *_: range(total)), MAX_PIXELS, MAX_FRAMES, LONGEST, "messages.0")


FORMS = [
    ("mp4", "libx264", "yuv420p"),
    ("mov", "mjpeg", "yuvj420p"),
    ("mov", "prores", "yuv422p10le"),
    ("avi", "mpeg4", "yuv420p"),
    ("gif", "gif", "rgb8"),
]


@pytest.mark.parametrize(("form", "codec", "pixels"), FORMS)
@pytest.mark.parametrize("count", [1, 7, 30])
def test_frames_are_those_of_transformers(form: str, codec: str, pixels: str, count: int, tmp_path: Path) -> None:
    data = video_file(30, form, codec, pixels=pixels)
    (tmp_path / "video").write_bytes(data)

    def sample(metadata: VideoMetadata, **_: object) -> Sequence[int]:
        return spread(count)(metadata.total_num_frames, metadata.fps or 0, metadata.duration or 0)

    expected, metadata = load_video(str(tmp_path / "video"), backend="pyav", sample_indices_fn=sample)
    video = decoded(data, spread(count))
    assert np.array_equal(video.frames, expected)
    assert (video.total_frames, video.indices) == (metadata.total_num_frames, metadata.frames_indices)
    assert (video.fps, video.duration) == (metadata.fps, metadata.duration)


@pytest.mark.parametrize(
    ("form", "codec", "options"),
    [
        ("webm", "libvpx", {}),
        ("webm", "libvpx-vp9", {}),
        ("webm", "libsvtav1", {}),
        ("mp4", "libx265", {}),
        ("matroska", "libx264", {}),
        ("mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
    ],
)
def test_frames_of_every_codec_are_counted_whatever_the_file_tells(form: str, codec: str, options: dict[str, str]) -> None:
    video = decoded(video_file(30, form, codec, **options), spread(3))
    assert (video.total_frames, video.fps, video.indices) == (30, 25.0, [0, 14, 29])
    greys = video.frames[:, -1, -1, 0].astype(int)
    assert np.abs(greys - [picture(number)[-1, -1, 0] for number in video.indices]).max() < 8


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_frames_are_turned_as_they_are_shown(rotation: int) -> None:
    upright = np.zeros((48, 64, 3), np.uint8)
    upright[:24, :32], upright[:24, 32:], upright[24:, :32], upright[24:, 32:] = RED, GREEN, BLUE, WHITE
    stored = np.ascontiguousarray(np.rot90(upright, -rotation // 90))
    frame = decoded(video_file([stored] * 3, rotation=rotation)).frames[1]
    assert frame.shape == upright.shape
    assert [colour_at(frame, x, y) for y in (0.25, 0.75) for x in (0.25, 0.75)] == [RED, GREEN, BLUE, WHITE]


def test_a_telephone_held_upright_is_shown_upright() -> None:
    # As QuickTime has it, (x, y) is shown at (-y, x): turned by a quarter, clockwise.
    data = bytearray(video_file(3))
    at = data.index(b"tkhd") + 44
    assert data[at : at + 4] == b"\0\1\0\0"
    data[at : at + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    frame = decoded(bytes(data)).frames[0]
    assert frame.shape == (64, 48, 3)
    assert colour_at(frame, 0.75, 0.25) == RED
    assert colour_at(frame, 0.25, 0.25) != RED


def test_a_rate_that_varies_is_given_by_its_mean() -> None:
    times = [0, 40, 400, 440, 2000, 2040]
    video = decoded(video_file(6, "matroska", times=lambda number: times[number]))
    assert video.total_frames == 6
    assert video.fps == pytest.approx(6 / 2.08, rel=0.01)


def trimmed(skipped: int, frames: int = 30, fps: int = 25) -> bytes:
    """An MP4 whose edit list begins after so many frames."""
    data = bytearray(video_file(frames, fps=fps))
    unit = struct.unpack_from(">I", data, data.index(b"mdhd") + 16)[0] // fps
    at = data.index(b"elst") + 12
    seconds = (frames - skipped) / fps
    data[at : at + 8] = struct.pack(">Ii", round(1000 * seconds), struct.unpack_from(">i", data, at + 4)[0] + skipped * unit)
    return bytes(data)


def test_frames_that_were_cut_away_are_not_counted() -> None:
    asked = []

    def choose(total: int, *_: float) -> Sequence[int]:
        asked.append(total)
        return range(total)

    video = decoded(trimmed(10), choose)
    assert (len(video.frames), asked) == (20, [20])
    greys = video.frames[:, -1, -1, 0].astype(int)
    assert np.abs(greys - [picture(number)[-1, -1, 0] for number in range(10, 30)]).max() < 8


def remuxed(data: bytes, change: Callable[[int, bytes], bytes], form: str = "webm") -> bytes:
    """A video whose packets are changed; ``change`` gets their numbers."""
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=form) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(packet for packet in source.demux(video=0) if packet.size):
            changed = av.Packet(change(number, bytes(packet)))
            changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
            changed.is_keyframe, changed.stream = packet.is_keyframe, stream
            target.mux(changed)
    return buffer.getvalue()


def test_frames_that_are_never_shown_are_not_counted_in_the_end() -> None:
    def hide(number: int, packet: bytes) -> bytes:
        return bytes([packet[0] & ~0x10]) + packet[1:] if number % 3 == 1 else packet  # VP8's "show frame"

    asked = []

    def choose(total: int, fps: float, duration: float) -> Sequence[int]:
        asked.append(total)
        return spread(4)(total, fps, duration)

    video = decoded(remuxed(video_file(30, "webm", "libvpx"), hide), choose)
    assert asked == [30, 20]
    assert (video.total_frames, video.indices, len(video.frames)) == (20, [0, 6, 13, 19], 4)


def test_frames_of_another_size_are_scaled_to_the_first_ones() -> None:
    small, large = (
        av.open(io.BytesIO(video_file([picture(0, *size)] * 2, "webm", "libvpx"))) for size in ((64, 48), (128, 96))
    )
    others = [bytes(packet) for packet in large.demux(video=0) if packet.size]
    data = remuxed(video_file([picture(0)] * 4, "webm", "libvpx"), lambda at, packet: packet if at < 2 else others[at - 2])
    video = decoded(data)
    assert video.frames.shape == (4, 48, 64, 3)
    assert [colour_at(frame, 0.25, 0.25) for frame in video.frames] == [RED] * 4
    assert small


def test_frames_may_be_wanted_twice_and_in_any_order() -> None:
    data = video_file(9)
    once, again = decoded(data), decoded(data, lambda *_: [5, 2, 2, 8])
    assert again.indices == [5, 2, 2, 8]
    assert np.array_equal(again.frames, once.frames[[5, 2, 2, 8]])


def with_subtitles() -> bytes:
    buffer = io.BytesIO()
    with av.open(io.BytesIO(video_file(9))) as source, av.open(buffer, "w", format="matroska") as target:
        stream, words = target.add_stream_from_template(source.streams.video[0]), target.add_mux_stream("subrip")
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
        line = av.Packet(b"Hello.")
        line.stream, line.pts, line.dts, line.duration, line.time_base = words, 0, 0, 300, Fraction(1, 1000)
        target.mux(line)
    return buffer.getvalue()


def test_other_tracks_do_not_matter() -> None:
    assert decoded(with_subtitles()).total_frames == 9
    video = decoded(video_file(9, sound=True))  # which goes on for longer
    assert (video.total_frames, video.fps) == (9, 25.0)


def webp_animation() -> bytes:
    frames = [Image.fromarray(picture(number)) for number in range(3)]
    return encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:])


def with_sleeve() -> bytes:
    """A song with the picture of its record's sleeve, which is a video stream of one frame."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        song = container.add_stream("aac", rate=16_000, layout="mono")
        sleeve = container.add_stream("mjpeg", rate=1)
        sleeve.width, sleeve.height, sleeve.pix_fmt = 64, 48, "yuvj420p"
        sleeve.disposition = Disposition.attached_pic
        container.mux(sleeve.encode(av.VideoFrame.from_ndarray(picture(0), format="rgb24").reformat(format="yuvj420p")))
        container.mux(sleeve.encode())
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16_000
        container.mux([*song.encode(frame), *song.encode()])
    return buffer.getvalue()


def rebuilt(data: bytes, changes: dict[bytes, bytes]) -> bytes:
    """An MP4 some of whose boxes have other contents."""
    out, at = b"", 0
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + size]
        if kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"):
            body = rebuilt(body, changes)
        body = changes.get(kind, body)
        out += struct.pack(">I4s", len(body) + 8, kind) + body
        at += size
    return out


def head_first(data: bytes) -> bytes:
    """An MP4 whose tables come before its frames, so that it can be cut off."""
    (offset,), at = struct.unpack_from(">I", data, data.index(b"stco") + 12), data.index(b"moov") - 4
    moov, rest = data[at:], data[data.index(b"free") - 4 : at]
    moved = rebuilt(moov, {b"stco": struct.pack(">III", 0, 1, offset + len(moov))})
    return data[: data.index(b"free") - 4] + moved + rest


WHOLE = head_first(video_file(50))
BAD = {
    "nothing": (b"", "empty"),
    "text": (b"hello", "5 bytes of an unknown format.*send MP4, MOV, WebM"),
    "a page": (b"<html>gone", "HTML"),
    "a playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "unknown format"),
    "a list of files": (b"ffconcat version 1.0\nfile /etc/passwd\n", "unknown format"),
    "a description of a session": (b"v=0\no=- 0 0 IN IP4 127.0.0.1\n", "unknown format"),
    "a picture": (encoded(Image.new("RGB", (8, 8)), "JPEG"), "look like JPEG; send that as image_url"),
    "an animated WebP": (webp_animation(), "look like WEBP"),
    "a sound": (sound_file(tone(0.1, 16_000), 16_000), "look like WAV; send that as audio_url"),
    "a song": (sound_track(tone(0.5, 16_000), 16_000, "ipod"), "only sound; send that as audio_url"),
    "a song with a sleeve": (with_sleeve(), "only sound; send that as audio_url"),
    "an MP4 without its beginning": (video_file(50)[:1000], "damaged|no video"),
    "an MP4 without its end": (WHOLE[: len(WHOLE) * 2 // 3], "cut off"),
    "an MP4 without its last bytes": (WHOLE[:-5], "cut off"),
    "a WebM without its end": (video_file(100, "webm", "libvpx")[:2500], "cut off"),
    "an AVI without its end": (video_file(100, "avi", "mpeg4")[:6000], "cut off"),
    "noise in an MP4": (WHOLE[:-1500] + np.random.default_rng(0).bytes(1500), "damaged"),
    "a rare codec": (video_file(3, "avi", "ffv1"), "ffv1, which is not accepted"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_good_video_says_why(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(InvalidMedia, match=reason) as caught:
        decoded(data)
    assert caught.value.param == "messages.0"


@pytest.mark.parametrize(("form", "codec"), [("mp4", "libx264"), ("webm", "libvpx"), ("avi", "mpeg4"), ("gif", "gif")])
def test_random_damage_never_raises_anything_else(form: str, codec: str) -> None:
    rng = np.random.default_rng(len(codec))
    whole = video_file(10, form, codec, pixels="rgb8" if form == "gif" else "yuv420p")
    for _ in range(6):
        data = bytearray(whole)
        for at in rng.integers(4, len(data), 8):
            data[at] = rng.integers(0, 256)
        with contextlib.suppress(InvalidMedia):
            decoded(bytes(data[: rng.integers(1, len(data) + 1)]))


def refusing(data: bytes, reason: str, choose: Choose, **limits: float) -> None:
    most = {"max_pixels": MAX_PIXELS, "max_frames": MAX_FRAMES, "max_seconds": LONGEST} | limits
    with pytest.raises(InvalidMedia, match=reason) as caught:
        decode_video(data, choose, param="messages.0", **most)  # type: ignore[arg-type]
    assert caught.value.param == "messages.0"


def test_videos_past_a_limit_are_refused_by_both_numbers() -> None:
    data = video_file(30)
    refusing(data, "lasts longer than the 1 seconds", spread(1), max_seconds=1)
    refusing(data, "looks at 30 frames of the video; at most 29", spread(30), max_frames=29)
    refusing(data, f"The 10 frames of 64x48.*{64 * 48 * 10 - 1} pixels", spread(10), max_pixels=64 * 48 * 10 - 1)


def test_videos_too_short_for_the_model_are_refused() -> None:
    refusing(video_file(1), "has 1 frames, too few", lambda *_: [])
    refusing(video_file(1), "has 1 frames, too few", lambda total, *_: range(0, total, 1 // 0))

    def fail(*_: object) -> Sequence[int]:
        raise ValueError("four frames at least")

    refusing(video_file(1), "four frames at least", fail)


def test_a_video_of_one_frame_is_one() -> None:
    for data in (video_file(1), video_file(1, "gif", "gif", pixels="rgb8"), video_file(1, "webm", "libvpx")):
        video = decoded(data)
        assert (video.total_frames, len(video.frames)) == (1, 1)
        assert video.fps > 0


def of_samples(count: int) -> bytes:
    """An MP4 of two kilobytes that tells of so many frames, of one byte each."""
    table = {b"stsz": (0, 1, count), b"stts": (0, 1, count, 1), b"stsc": (0, 1, 1, count, 1), b"ctts": (0, 0), b"stss": (0, 0)}
    return rebuilt(video_file(10), {kind: struct.pack(f">{len(body)}I", *body) for kind, body in table.items()})


def of_fragments(count: int) -> bytes:
    """A fragment that tells of so many frames."""
    fragmented = video_file(10, movflags="frag_keyframe+empty_moov")
    return rebuilt(fragmented, {b"trun": struct.pack(">II", 0, count)})


@pytest.mark.parametrize(
    "data", [of_samples(10**7), of_samples(170_000_000), of_samples(2**32 - 1), of_fragments(10**8), of_fragments(2**32 - 1)]
)
def test_containers_that_tell_of_millions_of_frames_are_refused_at_little_cost(data: bytes) -> None:
    assert len(data) < 2500
    began = time.monotonic()
    refusing(data, "damaged|no frames|memory|processor time", spread(1))
    assert time.monotonic() - began < 10


def test_what_takes_too_much_memory_is_refused() -> None:
    with pytest.raises(InvalidMedia, match="more than the 512 MiB of memory"):
        decode_video(of_fragments(10**8), spread(1), MAX_PIXELS, MAX_FRAMES, LONGEST, sandbox=Sandbox(Effort(memory=2**29)))


def test_nothing_is_left_of_a_decoding_that_is_given_up() -> None:
    def fail(*_: object) -> Sequence[int]:
        raise LookupError

    with pytest.raises(LookupError):
        decoded(video_file(3), fail)
    assert decoding_workers() == []
