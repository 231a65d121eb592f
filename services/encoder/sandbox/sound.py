"""Sounds in files of their own: WAV, MP3, FLAC and OGG, as libsndfile reads them."""

from __future__ import annotations

import io

import soundfile

from services.encoder.sandbox.channel import Channel, Refusal, check_length
from services.encoder.sandbox.messages import Order
from services.encoder.sandbox.samples import WORD as WORD
from services.encoder.sandbox.samples import Mixdown, check_channels

_BLOCK = 2**16  # numbers


def decode(channel: Channel, order: Order, data: bytes) -> None:
    """Delivers the sound.

    Raises:
        Refusal: it is no good sound, or lasts too long.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            check_channels(file.channels)
            mixdown = Mixdown(order, file.samplerate)
            check_length(file.frames / file.samplerate, order.longest, WORD)  # before anything is decoded
            while len(block := file.read(_BLOCK // file.channels, dtype="float32", always_2d=True)):
                mixdown.add(block.T)
    except (soundfile.SoundFileError, ValueError) as error:
        raise Refusal(f"The sound is damaged, or of a kind that is not accepted: {error}.") from error
    mixdown.finish(channel)
