"""The encoder half of MiDashengLM: from samples of a sound to embeddings. Transformers has no class for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from services.encoder.media import Media, Sound
from services.encoder.models.dasheng import Dasheng, Projector
from services.encoder.models.generic import EncoderHalf
from services.encoder.models.mel import LogMel
from shared.checkpoint import count_parameters
from shared.halves import Sketch
from shared.identity import MediaItem
from shared.layout import Layout
from shared.midashenglm import MiDashengLMConfig
from shared.weights import Stored, files_with

_LOUDEST = 1e9
"""Of samples whose full scale is 1. The power of louder ones may be no finite number."""
_OF_FRONT_END = {"front_end.0.spectrogram.window": "front_end.window", "front_end.0.mel_scale.fb": "front_end.bands"}
"""Published names that are others here; not all published checkpoints have them."""
_FULL_PRECISION = ("audio_encoder.front_end.", "audio_encoder.init_bn.")


class MiDashengEncoderHalf(EncoderHalf):
    """There is no processor: the features of a sound are its samples, ``input_values``, and the tower does the rest."""

    precompute_hash_before_cpu_transfer = True

    def load_processor(self, folder: Path) -> Any:  # noqa: ARG002
        """What decides how a sound is prepared."""
        return self.config.audio_encoder_config

    @staticmethod
    def load(folder: Path, config: MiDashengLMConfig, device: torch.device, dtype: torch.dtype) -> nn.Module:
        return load_audio_half(folder, config, device, dtype)

    @staticmethod
    def sketch(config: MiDashengLMConfig, dtype: torch.dtype, tensors: Mapping[str, Stored]) -> Sketch:
        half = empty_audio_half(config)
        wanted = half.state_dict()
        names = {_own_name(name): name for name in tensors if _own_name(name) in wanted}
        _check(wanted, {own: tensors[name].shape for own, name in names.items()})
        size = sum(tensor.numel() * _dtype_of(name, dtype).itemsize for name, tensor in wanted.items())
        return Sketch(count_parameters(half.named_parameters()), size, frozenset(names.values()))

    @property
    def sound_rate(self) -> int:
        return int(self.config.audio_encoder_config.sample_rate)

    def features(self, media: Media, form: str) -> MediaItem:  # noqa: ARG002
        """An item with the samples of a sound, ``(samples,)`` float32.

        Raises:
            ValueError: it is too short for one token, or has samples that are no numbers, or far too large ones.
        """
        assert isinstance(media, Sound)
        tower, together = self.config.audio_encoder_config, self.config.subsample_factor
        length = len(media.samples)
        tokens = tower.patches(length) // together
        if not tokens:
            least = tower.samples(together) / tower.sample_rate
            raise ValueError(f"The sound lasts {length / media.rate:.3f} s; it must last {least:.2f} s at least.")
        if not np.abs(media.samples).max() < _LOUDEST:  # nor are comparisons with what is no number true
            raise ValueError("The sound has samples that are not numbers, or a billion times as loud as full scale.")
        item = MediaItem("audio", tokens, layout=Layout(((self.config.audio_token_id, tokens),)))
        item.features = {"input_values": torch.from_numpy(media.samples)}
        return item

    @torch.inference_mode()
    def encode(self, items: Sequence[MediaItem]) -> None:
        sounds = [item.features["input_values"].to(self.device) for item in items]
        for item, embeds in zip(items, self._model(sounds), strict=True):
            item.embeds = embeds
            item.num_tokens = embeds.shape[0]


class AudioHalf(nn.Module):
    """Tower and projector, under their published names."""

    def __init__(self, config: MiDashengLMConfig) -> None:
        super().__init__()
        width, hidden = config.audio_encoder_config.embed_dim, config.text_config.hidden_size
        self.audio_encoder = Dasheng(config.audio_encoder_config)
        self.audio_projector = Projector(config.subsample_factor, width, hidden)

    def forward(self, sounds: Sequence[Tensor]) -> list[Tensor]:
        """Of each sound, ``(samples,)`` float32, the embeddings, ``(tokens, hidden)``."""
        return [self.audio_projector(patches) for patches in self.audio_encoder(sounds)]


def load_audio_half(folder: Path, config: MiDashengLMConfig, device: torch.device, dtype: torch.dtype) -> AudioHalf:
    """The weights of the audio half, on ``device``, and of the checkpoint's files only those; what comes before the patches in
    float32, since decibels in narrower formats have steps of up to half a decibel.

    Raises:
        ValueError: the checkpoint lacks some, or they are of another shape than its configuration says.
        OSError: they cannot be read.
    """
    half = empty_audio_half(config)
    half.audio_encoder.front_end = LogMel(config.audio_encoder_config).to(device)
    wanted = half.state_dict()
    found: dict[str, Tensor] = {}
    for file in files_with(folder, lambda name: _own_name(name) in wanted):
        with safe_open(folder / file, framework="pt", device=str(device)) as stored:
            for name in stored.keys():  # noqa: SIM118
                own = _own_name(name)
                if own in wanted:
                    found[own] = stored.get_tensor(name).to(_dtype_of(own, dtype))
    _check(wanted, {name: tensor.shape for name, tensor in found.items()})
    half.load_state_dict(found, strict=False, assign=True)
    return half.eval().requires_grad_(False)


def empty_audio_half(config: MiDashengLMConfig) -> AudioHalf:
    """The audio half without weights, on the meta device."""
    with torch.device("meta"):
        return AudioHalf(config)


def _own_name(name: str) -> str:
    """What a published tensor is called here."""
    part, _, rest = name.partition(".")
    return f"{part}.{_OF_FRONT_END.get(rest, rest)}"


def _dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """How a tensor is computed with, where others are with ``dtype``."""
    return torch.float32 if name.startswith(_FULL_PRECISION) else dtype


def _check(wanted: Mapping[str, Tensor], found: Mapping[str, Sequence[int]]) -> None:
    """Raises ValueError where ``found``, shapes by name, are not those that are ``wanted``."""
    if absent := sorted(wanted.keys() - found.keys() - {f"audio_encoder.{own}" for own in _OF_FRONT_END.values()}):
        raise ValueError(f"the checkpoint lacks weights of the encoder half, for example {absent[:3]}")
    for name, shape in found.items():
        if tuple(shape) != tuple(wanted[name].shape):
            shapes = f"{list(shape)} and not {list(wanted[name].shape)}"
            raise ValueError(f"the checkpoint's weights do not fit its configuration: {name} is {shapes}")
