"""Sounds that FFmpeg reads: in containers that films use too, M4A and MP4, and WebM; and streams, of AAC and FLAC."""

from __future__ import annotations

import av
import numpy as np

from services.encoder.sandbox.channel import Channel, Refusal
from services.encoder.sandbox.container import SOUND_CODECS, check_codec, opened, survey
from services.encoder.sandbox.messages import Order
from services.encoder.sandbox.samples import WORD as WORD
from services.encoder.sandbox.samples import Mixdown, check_channels


def decode(channel: Channel, order: Order, data: bytes) -> None:
    """Delivers the first sound track.

    Raises:
        Refusal: it is no good sound, or lasts too long.
    """
    with opened(data, order.form, WORD) as container:
        if not container.streams.audio:
            raise Refusal("The file has no sound in it.")
        survey(container, container.streams.audio[0], WORD, order.longest)
    mixdown: Mixdown | None = None
    with opened(data, order.form, WORD) as container:
        stream = container.streams.audio[0]
        check_codec(stream, SOUND_CODECS, WORD)
        check_channels(stream.channels)
        planes = av.AudioResampler(format="fltp")  # of the same rate and channels: numbers in another order
        for frame in container.decode(stream):
            mixdown = mixdown or Mixdown(order, frame.sample_rate)
            for block in planes.resample(frame):
                mixdown.add(block.to_ndarray().astype(np.float32, copy=False))
    if mixdown is None:
        raise Refusal("The sound has no samples.")
    mixdown.finish(channel)
