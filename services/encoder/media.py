"""What the loaders make of a file, and a family's processor takes: a picture of PIL's, a sound, or frames of a video."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """``samples`` are float32, of one channel, ``(n,)``, mostly between -1 and 1; ``rate`` of them are a second."""

    samples: NDArray[np.float32]
    rate: int


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """Frames that the family's rules chose: uint8, upright, ``(n, height, width, 3)``, the n-th being number ``indices[n]`` of
    the ``total_frames`` of the file, which has ``fps`` of them a second, on average, and lasts ``duration`` seconds."""

    frames: NDArray[np.uint8]
    fps: float
    duration: float
    total_frames: int
    indices: list[int]


Media = Image.Image | Sound | Video
