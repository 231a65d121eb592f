"""Bytes to sounds: the samples are transformers' own, and what is no sound, or too much of one, is refused at little cost."""

from __future__ import annotations

import base64
import contextlib
import resource
import struct

import numpy as np
import pytest
from transformers.audio_utils import load_audio

from services.encoder.sandbox.process import Effort, Sandbox
from services.encoder.sound import decode_sound
from shared.errors import InvalidMedia
from tests.media import sound_file, sound_track, tone, video_file

RATE = 16_000
LONGEST = 600.0


def spectrum_peak(samples: np.ndarray, rate: int) -> float:
    """The loudest frequency, in hertz."""
    return float(np.abs(np.fft.rfft(samples)).argmax() * rate / len(samples))


@pytest.mark.parametrize(
    ("form", "subtype", "rate", "channels"),
    [
        ("WAV", "PCM_16", 44_100, 2),
        ("WAV", "PCM_24", 8_000, 1),
        ("WAV", "FLOAT", RATE, 1),
        ("WAV", "ULAW", 8_000, 1),
        ("FLAC", "PCM_16", 48_000, 2),
        ("OGG", "VORBIS", 22_050, 2),
        ("OGG", "OPUS", 48_000, 1),
        ("MP3", "MPEG_LAYER_III", 44_100, 2),
    ],
)
def test_samples_are_those_of_transformers(form: str, subtype: str, rate: int, channels: int) -> None:
    data = sound_file(tone(1.7, rate, channels=channels), rate, form, subtype)
    expected = load_audio(base64.b64encode(data).decode(), RATE, backend="soundfile")
    sound = decode_sound(data, RATE, LONGEST)
    assert (sound.rate, sound.samples.dtype) == (RATE, np.float32)
    assert np.array_equal(sound.samples, expected)


@pytest.mark.parametrize(
    ("form", "codec"),
    [("mp4", "aac"), ("ipod", "alac"), ("webm", "libopus"), ("matroska", "pcm_s16le"), ("adts", "aac"), ("mov", "pcm_s16le")],
)
def test_tracks_of_containers_are_sounds(form: str, codec: str) -> None:
    sound = decode_sound(sound_track(tone(2.0, 48_000, 1000.0), 48_000, form, codec), RATE, LONGEST)
    assert abs(len(sound.samples) / RATE - 2.0) < 0.1
    assert abs(spectrum_peak(sound.samples, RATE) - 1000.0) < 2.0
    assert 0.45 < np.abs(sound.samples[RATE // 2 : RATE]).max() < 0.6


def test_the_sound_of_a_video_is_taken() -> None:
    assert abs(len(decode_sound(video_file(25, sound=True), RATE, LONGEST).samples) / RATE - 1.0) < 0.1


def test_channels_are_averaged() -> None:
    left = tone(0.5, RATE)
    both = sound_file(np.concatenate([left, -left], axis=1), RATE, subtype="FLOAT")
    assert np.abs(decode_sound(both, RATE, LONGEST).samples).max() == 0


def test_a_stream_that_did_not_know_its_length_is_taken() -> None:
    data = bytearray(sound_file(tone(0.5, RATE), RATE, subtype="PCM_16"))
    at = data.index(b"data")
    data[4:8] = data[at + 4 : at + 8] = b"\xff" * 4
    assert len(decode_sound(bytes(data), RATE, LONGEST).samples) == RATE // 2


def wav(rate: int, samples: bytes = bytes(2000), channels: int = 1) -> bytes:
    """Samples of eight bits."""
    head = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * channels, channels, 8)
    return (
        b"RIFF"
        + struct.pack("<I", 36 + len(samples))
        + b"WAVEfmt "
        + head
        + b"data"
        + struct.pack("<I", len(samples))
        + samples
    )


def with_value(value: float) -> bytes:
    samples = tone(0.1, RATE)
    samples[100] = value
    return sound_file(samples, RATE, subtype="FLOAT")


BAD = {
    "nothing": (b"", "empty"),
    "text": (b"hello", "5 bytes of an unknown format.*send WAV, MP3"),
    "a page": (b"<!DOCTYPE html><p>gone", "HTML"),
    "a playlist": (b"#EXTM3U\nfile:///etc/passwd\n", "unknown format"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "look like PNG; send that as image_url"),
    "another format": (b"FORM\0\0\0\x10AIFFCOMM", "unknown format"),
    "no samples": (sound_file(np.empty((0, 1), np.float32), RATE), "no samples"),
    "a head": (sound_file(tone(1, RATE), RATE)[:30], "damaged"),
    "half a FLAC": (sound_file(tone(1, RATE), RATE, "FLAC")[:9000], "damaged"),
    "a video": (video_file(5), "no sound in it"),
    "half an M4A": (sound_track(tone(2, RATE), RATE)[:9000], "damaged"),
    "half a WebM": (sound_track(tone(9, 48_000), 48_000, "webm", "libopus")[:30_000], "cut off"),
    "not a number": (with_value(float("nan")), "not finite"),
    "infinite": (with_value(float("inf")), "not finite"),
    "far too loud": (with_value(1e30), "far too large"),
    "a rate of one": (wav(1), "1 samples a second"),
    "a rate of millions": (wav(3_000_000), "3000000 samples a second"),
    "a hundred channels": (wav(RATE, channels=100), "100 channels"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_good_sound_says_why(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(InvalidMedia, match=reason) as caught:
        decode_sound(data, RATE, LONGEST, "messages.0")
    assert caught.value.param == "messages.0"


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_random_damage_never_raises_anything_else(form: str) -> None:
    rng = np.random.default_rng(len(form))
    whole = sound_file(tone(0.5, RATE), RATE, form)
    for _ in range(5):
        data = bytearray(whole)
        for at in rng.integers(4, len(data), 8):
            data[at] = rng.integers(0, 256)
        with contextlib.suppress(InvalidMedia):
            decode_sound(bytes(data[: rng.integers(1, len(data) + 1)]), RATE, LONGEST)


def aac_silence(hours: float) -> bytes:
    """Hours of silence in a stream that does not say how long it is: one frame of 64 ms, again and again."""
    stream = sound_track(np.zeros((RATE, 1), np.float32), RATE, "adts")
    frames, at = [], 0
    while at < len(stream):
        size = int.from_bytes(stream[at + 3 : at + 6]) >> 5 & 0x1FFF
        frames.append(stream[at : at + size])
        at += size
    return min(frames, key=len) * round(hours * 3600 / 0.064)


def flac_silence(hours: float, told: float) -> bytes:
    """Hours of silence, in a file that tells of other ones; none is that it does not know."""
    data = bytearray(sound_file(np.zeros((round(hours * 3600 * 8000), 1), np.float32), 8000, "FLAC"))
    data[22:26] = round(told * 3600 * 8000).to_bytes(4)
    return bytes(data)


@pytest.mark.parametrize("data", [aac_silence(7), flac_silence(1, 1), flac_silence(1, 0), flac_silence(0.001, 100)])
def test_hours_are_refused_before_they_are_decoded(data: bytes) -> None:
    assert len(data) < 5_000_000
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(InvalidMedia, match="longer than the 600 seconds"):
        decode_sound(data, RATE, LONGEST)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 1


def test_a_flac_that_did_not_know_its_length_is_taken() -> None:
    samples = tone(1.0, RATE)
    data = bytearray(sound_file(samples, RATE, "FLAC"))
    data[21:26] = (int.from_bytes(data[21:26]) & ~((1 << 36) - 1)).to_bytes(5)
    assert np.abs(decode_sound(bytes(data), RATE, LONGEST).samples - samples[:, 0]).max() < 1e-4


def test_what_takes_too_much_time_or_memory_is_refused() -> None:
    long = wav(8000, bytes(16_000_000))
    with pytest.raises(InvalidMedia, match=r"more than the 0.1 seconds of processor time"):
        decode_sound(long, 96_000, 1e9, sandbox=Sandbox(Effort(seconds=0.1, memory=2**33)))
    with pytest.raises(InvalidMedia, match="more than the 64 MiB of memory") as caught:
        decode_sound(long, 96_000, 1e9, "messages.0", sandbox=Sandbox(Effort(memory=2**26)))
    assert caught.value.param == "messages.0"
