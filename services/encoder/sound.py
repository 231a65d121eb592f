"""Bytes to a sound of one channel, at the rate that a family's processor wants."""

from __future__ import annotations

import numpy as np

from services.encoder.extras import need
from services.encoder.kinds import describe, kind_of
from services.encoder.media import Sound
from services.encoder.sandbox.messages import Order
from services.encoder.sandbox.process import Sandbox
from shared.errors import InvalidMedia, media_errors

FORMATS = ("WAV", "MP3", "FLAC", "OGG", "M4A", "WebM", "AAC")
_FILES = frozenset(("WAV", "MP3", "FLAC", "OGG"))
_DEMUXERS = {"MP4": "mov", "WebM": "matroska", "AAC": "aac", "FLAC": "flac"}


def decode_sound(data: bytes, rate: int, max_seconds: float, param: str | None = None, sandbox: Sandbox | None = None) -> Sound:
    """The first track of a sound, its channels' mean, at ``rate`` samples a second. Blocks, since another process decodes it.

    It is what transformers' own loader (soundfile and soxr) gives for WAV, MP3, FLAC and OGG.

    Raises:
        InvalidMedia: not a sound, a kind that is not accepted, damaged, empty, longer than ``max_seconds``, or taking more than
            the sandbox gives.
        RuntimeError: the decoder failed.
    """
    if not data:
        raise InvalidMedia("The sound is empty (0 bytes).", param=param)
    kind, sandbox = kind_of(data), sandbox or Sandbox()
    seconds, memory = sandbox.effort.seconds, sandbox.effort.memory
    if kind in _FILES and not _is_endless(data):
        need("soundfile", "audio", "Sounds", param)
        order = Order("sound", "", len(data), seconds, memory, rate, max_seconds)
    elif kind in _DEMUXERS:
        need("av", "audio", f"Sounds in {kind}", param)
        order = Order("soundtrack", _DEMUXERS[kind], len(data), seconds, memory, rate, max_seconds)
    else:
        raise InvalidMedia(
            f"The bytes are not a sound ({describe(data, 'audio_url')}); send {', '.join(FORMATS)}.", param=param
        )
    with sandbox.decoding(order, data, param) as decoding, media_errors(param):
        samples = decoding.only(np.float32)
    return Sound(samples, rate)


def _is_endless(data: bytes) -> bool:
    """Whether it is a FLAC whose head does not say how many samples follow, like those that pipes are given; libsndfile cannot
    read these."""
    return data.startswith(b"fLaC") and not int.from_bytes(data[21:26]) & (1 << 36) - 1
