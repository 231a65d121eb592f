"""The decoding process's end of the pipes."""

from __future__ import annotations

from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.encoder.sandbox.messages import Answer, Piece


class Refusal(Exception):
    """The file is at fault; the text is a sentence for whoever sent it."""


def check_length(seconds: float, longest: float, word: str) -> None:
    """Raises Refusal where something lasts more than ``longest`` seconds."""
    if seconds > longest:
        raise Refusal(f"The {word} lasts longer than the {longest:g} seconds that are accepted.")


class Channel:
    """What comes from the parent, and what goes to it."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._in = incoming
        self._out = outgoing

    def line(self) -> bytes:
        """The next message; empty where the parent is done."""
        return self._in.readline()

    def read(self, size: int) -> bytes:
        """The bytes behind a message."""
        return self._in.read(size)

    def say(self, message: Answer) -> None:
        """Answers."""
        self._out.write(msgspec.json.encode(message) + b"\n")
        self._out.flush()

    def deliver(self, values: NDArray[np.uint8] | NDArray[np.float32]) -> None:
        """Answers with a ``Piece`` and its bytes."""
        self._out.write(msgspec.json.encode(Piece(values.nbytes, values.shape)) + b"\n")
        self._out.write(np.ascontiguousarray(values).data.cast("B"))
        self._out.flush()
