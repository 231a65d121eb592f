"""The configuration of MiDashengLM, which transformers does not have: what the published ``config.json`` says, field by field.

Fields that it leaves out have the values that the published classes give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniTextConfig


class DashengConfig(PreTrainedConfig):  # type: ignore[misc]
    """The audio tower: a mel front end, patches of its spectrogram, and a vision transformer over them.

    ``sample_rate`` is in Hz, ``win_length``, ``n_fft`` and ``hop_length`` in samples, ``f_min`` and ``f_max`` in Hz;
    ``target_length`` counts frames of one chunk. ``patch_size`` and ``patch_stride`` are ``(mels, frames)``. ``init_values``
    is None where blocks do not scale what they add.
    """

    model_type = "midashenglm_dasheng_encoder"

    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    init_values: float | None = None
    input_channels: int = 1
    patch_size: int | Sequence[int] = 16
    patch_stride: int | Sequence[int] = 16
    target_length: int = 1012
    sample_rate: int = 16_000
    win_length: int = 512
    n_fft: int = 512
    hop_length: int = 160
    center: bool = True
    n_mels: int = 64
    f_min: float = 0.0
    f_max: float = 8000.0

    def check(self) -> None:
        """Patches must be what one token can stand for: a stretch of time.

        Raises:
            ValueError: they overlap, or do not cover all mels.
        """
        size, stride = _pair(self.patch_size), _pair(self.patch_stride)
        if size != stride or size[0] != self.n_mels or self.input_channels != 1:
            raise ValueError(
                f"towers with patches of {size} mels and frames, {stride} apart, in {self.input_channels} channels are not "
                f"served; patches must cover all {self.n_mels} mels of one channel, and not overlap"
            )

    @property
    def patch_frames(self) -> int:
        """Frames of one patch."""
        return _pair(self.patch_size)[1]

    @property
    def chunk_patches(self) -> int:
        """Patches that attend to each other; a longer sound is several chunks."""
        return self.target_length // self.patch_frames

    def patches(self, samples: int) -> int:
        """Patches of a sound of so many samples: whole ones only, of frames that are ``hop_length`` apart."""
        frames = 1 + (samples if self.center else samples - self.n_fft) // self.hop_length
        return max(0, frames // self.patch_frames)

    def samples(self, patches: int) -> int:
        """The fewest samples that have so many patches."""
        return (patches * self.patch_frames - 1) * self.hop_length + (0 if self.center else self.n_fft)

    def heard_patches(self, samples: int) -> int:
        """The patches that are all sound. One more may reach past its end, into what mirrors it; nothing attends to that."""
        return min(self.patches(samples), samples // (self.hop_length * self.patch_frames))


class MiDashengLMConfig(PreTrainedConfig):  # type: ignore[misc]
    """The whole model. ``subsample_factor`` patches of the tower become one token, ``audio_token_id`` in the prompt.

    ``audio_encoder_config`` becomes a ``DashengConfig``, ``text_config`` a ``Qwen2_5OmniTextConfig``.
    """

    model_type = "midashenglm"
    sub_configs_defaults = {"audio_encoder_config": DashengConfig, "text_config": Qwen2_5OmniTextConfig}  # noqa: RUF012

    audio_encoder_config: Any = None
    text_config: Any = None
    subsample_factor: int = 5
    audio_token_id: int | None = None

    def __post_init__(self, **others: Any) -> None:
        super().__post_init__(**others)
        # The decoder comes from a model that also sees. What only hears has one position a token, the same on all axes.
        rope = self.text_config.rope_parameters
        self.text_config.rope_parameters = {name: value for name, value in rope.items() if name != "mrope_section"}


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second
