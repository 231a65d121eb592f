"""ERNIE 4.5 VL: features wait on the CPU for the tower, unless they may stay on the GPU."""

from __future__ import annotations

from services.encoder.models.generic import EncoderHalf


class ErnieEncoderHalf(EncoderHalf):
    """They are hashed where they are first, as everywhere."""

    precompute_hash_before_cpu_transfer = True
