"""From the samples of a sound to the decibels of its mel bands: the front end of Dasheng towers, in torch alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shared.midashenglm import DashengConfig

_SILENCE = 1e-10
"""The least power that is told from none; -100 dB."""
_RANGE_DB = 120.0
"""What lies further than this below a sound's loudest band and frame is raised to there."""


class LogMel(nn.Module):
    """A power spectrogram under a Hann window, summed in triangular bands that are evenly spaced in mel, in decibels.

    Always float32: spectra span more powers of ten than narrower formats resolve. ``window`` is ``(win_length,)``, ``bands``
    ``(n_fft / 2 + 1, n_mels)``; a checkpoint may bring its own.
    """

    window: Tensor
    bands: Tensor

    def __init__(self, config: DashengConfig) -> None:
        super().__init__()
        self._n_fft: int = config.n_fft
        self._hop: int = config.hop_length
        self._center: bool = config.center
        self.register_buffer("window", torch.hann_window(config.win_length, dtype=torch.float32))
        self.register_buffer("bands", mel_bands(config))

    def forward(self, samples: Tensor) -> Tensor:
        """``(samples,)`` float32 to ``(n_mels, frames)`` float32, in dB of full scale."""
        spectrum = torch.stft(
            samples,
            self._n_fft,
            hop_length=self._hop,
            win_length=self.window.shape[0],
            window=self.window,
            center=self._center,
            pad_mode="reflect",
            return_complex=True,
        )
        power = self.bands.T @ torch.view_as_real(spectrum).square().sum(-1)
        decibels = 10.0 * power.clamp_min(_SILENCE).log10()
        return decibels.clamp_min(decibels.max() - _RANGE_DB)


def mel_bands(config: DashengConfig) -> Tensor:
    """Weights ``(n_fft / 2 + 1, n_mels)`` float32 of the spectrum's bins in each band.

    By the formula that HTK goes by, ``f`` Hz are ``2595 log10(1 + f / 700)`` mel. Band ``i`` rises from 0 at the ``i``-th of
    ``n_mels + 2`` evenly spaced points to 1 at the next and falls to 0 at the one after, linearly in Hz.
    """
    low, high = (2595.0 * math.log10(1.0 + frequency / 700.0) for frequency in (config.f_min, config.f_max))
    points = 700.0 * (10.0 ** (torch.linspace(low, high, config.n_mels + 2, dtype=torch.float64) / 2595.0) - 1.0)
    bins = torch.linspace(0.0, config.sample_rate / 2, config.n_fft // 2 + 1, dtype=torch.float64)[:, None]
    rising = (bins - points[:-2]) / (points[1:-1] - points[:-2])
    falling = (points[2:] - bins) / (points[2:] - points[1:-1])
    return torch.minimum(rising, falling).clamp_min(0.0).float()
