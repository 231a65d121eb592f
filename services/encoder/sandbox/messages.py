"""What an encoder and its decoding processes say to each other: lines of JSON, some with raw bytes behind them."""

from __future__ import annotations

from typing import Literal

import msgspec


class Order(msgspec.Struct, frozen=True):
    """What a process is to decode; ``size`` bytes of it follow.

    ``form`` is the container, as FFmpeg calls it, or empty where it is not FFmpeg that decodes. ``seconds`` of processor time
    and ``memory`` bytes are what it may take. Sounds and videos may last ``longest`` seconds; of a sound, ``rate`` samples a
    second are wanted. A picture may have ``max_pixels``.
    """

    kind: Literal["sound", "soundtrack", "video", "heic"]
    form: str
    size: int
    seconds: float
    memory: int
    rate: int = 0
    longest: float = 0.0
    max_pixels: int = 0


class Found(msgspec.Struct, frozen=True, tag=True):
    """A video: ``width`` and ``height`` in pixels, before any rotation, ``frames`` in all, ``fps`` of them a second."""

    frames: int
    fps: float
    width: int
    height: int


class Wanted(msgspec.Struct, frozen=True):
    """The numbers of the frames that are wanted, ascending, none twice. None may have more than ``max_pixels``."""

    frames: list[int]
    max_pixels: int


class Piece(msgspec.Struct, frozen=True, tag=True):
    """Raw bytes follow: a frame or a picture, uint8 of this ``shape``; or samples, float32."""

    size: int
    shape: tuple[int, ...]


class Done(msgspec.Struct, frozen=True, tag=True):
    """There are no more pieces. Of a video, ``frames`` were decoded."""

    frames: int = 0


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The file is at fault. ``reason`` is a sentence."""

    reason: str


Answer = Found | Piece | Done | Refused
