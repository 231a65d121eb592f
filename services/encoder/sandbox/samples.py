"""Samples on their way: mixed down to one channel and resampled block by block, so that no more is held than what is wanted."""

from __future__ import annotations

import math

import numpy as np
import soxr
from numpy.typing import NDArray

from services.encoder.sandbox.channel import Channel, Refusal, check_length
from services.encoder.sandbox.messages import Done, Order

WORD = "sound"
RATES = range(1000, 768_001)
CHANNELS = 64
_LOUDEST = 2.0**31  # as far as samples of 32 bits go that nobody scaled

Samples = NDArray[np.float32]


class Mixdown:
    """Takes blocks of a sound of ``rate`` samples a second, and delivers what an order wants of it.

    That is what transformers' own loader gives for the same file: the mean of the channels, resampled by soxr at its high
    quality to ``ceil(n * wanted / rate)`` samples.

    Raises (on creation):
        Refusal: the rate is no rate of a sound.
    """

    def __init__(self, order: Order, rate: int) -> None:
        if rate not in RATES:
            raise Refusal(f"The sound has {rate} samples a second; {RATES[0]} to {RATES[-1]} are accepted.")
        self.rate = rate
        self._order = order
        self._taken = 0
        self._done: list[Samples] = []
        same = rate == order.rate
        self._resampler = None if same else soxr.ResampleStream(rate, order.rate, 1, dtype="float32", quality="soxr_hq")

    def add(self, block: Samples) -> None:
        """Takes the next samples, ``(channels, n)``.

        Raises:
            Refusal: they are too many by now, or no numbers that are a sound's.
        """
        self._taken += block.shape[1]
        check_length(self._taken / self.rate, self._order.longest, WORD)
        mixed = block.mean(axis=0) if len(block) > 1 else block[0]
        if not np.abs(mixed).max(initial=0.0) <= _LOUDEST:
            raise Refusal("The sound has samples that are not finite, or far too large.")
        self._done.append(mixed if self._resampler is None else self._resampler.resample_chunk(mixed))

    def finish(self, channel: Channel) -> None:
        """There were no more.

        Raises:
            Refusal: there were none at all.
        """
        if not self._taken:
            raise Refusal("The sound has no samples.")
        if self._resampler is not None:
            self._done.append(self._resampler.resample_chunk(np.empty(0, np.float32), last=True))
        samples = np.concatenate(self._done)
        length = math.ceil(self._taken * self._order.rate / self.rate)
        channel.deliver(np.pad(samples, (0, max(0, length - len(samples))))[:length])
        channel.say(Done())


def check_channels(channels: int) -> None:
    """Raises Refusal where a sound has more channels than any real one."""
    if channels > CHANNELS:
        raise Refusal(f"The sound has {channels} channels; at most {CHANNELS} are accepted.")
