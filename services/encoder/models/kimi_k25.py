"""Kimi K2.5: hashes features where they are before they wait on the CPU, and makes a video of several short ones."""

from __future__ import annotations

from services.encoder.models.generic import EncoderHalf


class KimiEncoderHalf(EncoderHalf):
    """Its processor needs torchvision."""

    precompute_hash_before_cpu_transfer = True
