"""``python -m services.encoder check MODEL``: whether a checkpoint can be served, and what its encoder half takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic_settings import SettingsConfigDict
from torch import nn

from services.encoder.models.generic import EncoderHalf
from shared.appraisal import CheckSettings, Kind, Served, run, served
from shared.checkpoint import pick_device, pick_dtype, published_tensors, resolve
from shared.families import open_family


class EncoderCheck(CheckSettings):
    __doc__ = CheckSettings.__doc__

    model_config = SettingsConfigDict(cli_prog_name="python -m services.encoder check")


def check(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return run(EncoderCheck, arguments, appraise)


def appraise(settings: CheckSettings) -> Served:
    """What becomes of a checkpoint when the encoder starts, without its weights.

    Raises:
        ValueError, OSError: it would not start.
    """
    folder = resolve(settings.model, settings.revision, settings.trust_remote_code, weights=False)
    family, config = open_family(folder, settings.families, settings.trust_remote_code)
    family.require_extras()
    adapter: type[EncoderHalf] = family.half("encoder")
    _without_weights(adapter)(folder, config, family, settings.device, settings.dtype, settings.trust_remote_code)
    device = pick_device(settings.device)
    kind = Kind(device, pick_dtype(settings.dtype, device))
    tensors = published_tensors(settings.model, folder)
    return served(family, config, kind, adapter.sketch(config, kind.dtype, tensors), "vision", tensors)


def _without_weights(adapter: type[EncoderHalf]) -> type[EncoderHalf]:
    """An adapter that has its processor, but no tower."""

    class WithoutWeights(adapter):  # type: ignore[misc, valid-type]
        @staticmethod
        def load(folder: Path, config: Any, device: torch.device, dtype: torch.dtype) -> nn.Module:  # noqa: ARG004
            return nn.Module()

    return WithoutWeights
