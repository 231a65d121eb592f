"""What MiDashengLM's audio half computes, written out from its formulas in numpy and float64: nothing here is shared with the
services, so that what both agree on is what the formulas say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Weights: TypeAlias = Mapping[str, np.ndarray]
"""By name as in the published checkpoints."""


def log_mel(samples: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Decibels ``(mels, frames)``: windows cut out one by one, a discrete Fourier transform by its matrix, triangles in Hz."""
    size, hop = config["n_fft"], config["hop_length"]
    padded = np.pad(samples.astype(np.float64), size // 2, mode="reflect")
    frames = np.stack([padded[start : start + size] for start in range(0, len(padded) - size + 1, hop)], axis=1)
    times = np.arange(size)
    hann = np.sin(np.pi * times / size) ** 2
    frequencies = np.arange(size // 2 + 1)
    transform = np.exp(-2j * np.pi * np.outer(frequencies, times) / size)
    power = np.abs(transform @ (hann[:, None] * frames)) ** 2
    decibels = 10 * np.log10(np.maximum(triangles(config) @ power, 1e-10))
    return np.maximum(decibels, decibels.max() - 120)


def triangles(config: Mapping[str, Any]) -> np.ndarray:
    """``(mels, bins)``: how much of each frequency belongs to each band, by where the bands' corners are in mel."""

    def to_mel(hertz: float) -> float:
        return 1127.0104805 * math.log1p(hertz / 700)

    corners = np.linspace(to_mel(config["f_min"]), to_mel(config["f_max"]), config["n_mels"] + 2)
    hertz = 700 * np.expm1(corners / 1127.0104805)
    rate, size = config["sample_rate"], config["n_fft"]
    result = np.zeros((config["n_mels"], size // 2 + 1))
    for band in range(config["n_mels"]):
        left, middle, right = hertz[band : band + 3]
        for number in range(size // 2 + 1):
            frequency = number * rate / size
            if left < frequency <= middle:
                result[band, number] = (frequency - left) / (middle - left)
            elif middle < frequency < right:
                result[band, number] = (right - frequency) / (right - middle)
    return result


def tower(samples: np.ndarray, config: Mapping[str, Any], weights: Weights) -> np.ndarray:
    """Patches ``(patches, width)``, chunk by chunk."""
    mean, variance = weights["audio_encoder.init_bn.running_mean"], weights["audio_encoder.init_bn.running_var"]
    levels = (log_mel(samples, config) - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5)
    levels = levels * weights["audio_encoder.init_bn.weight"][:, None] + weights["audio_encoder.init_bn.bias"][:, None]
    long = config["patch_size"][1]
    kernel = weights["audio_encoder.patch_embed.proj.weight"]
    patches = [
        np.einsum("dmf,mf->d", kernel[:, 0], levels[:, start : start + long]) + weights["audio_encoder.patch_embed.proj.bias"]
        for start in range(0, levels.shape[1] - long + 1, long)
    ]
    whole = len(samples) // (config["hop_length"] * long)
    chunk = config["target_length"] // long
    done = []
    for start in range(0, len(patches), chunk):
        x = np.stack(patches[start : start + chunk])
        x = (
            x
            + weights["audio_encoder.time_pos_embed"][0, :, 0, : len(x)].T
            + weights["audio_encoder.freq_pos_embed"][0, :, 0, 0]
        )
        for number in range(config["depth"]):
            x = _block(x, config, weights, f"audio_encoder.blocks.{number}", max(0, min(whole - start, len(x))))
        done.append(_norm(x, weights, "audio_encoder.norm"))
    return np.concatenate(done)


def embeddings(samples: np.ndarray, config: Mapping[str, Any], weights: Weights, together: int) -> np.ndarray:
    """What stands for a sound in the prompt: ``(tokens, hidden)``, each made of so many patches ``together``."""
    patches = tower(samples, config, weights)
    rows = [np.concatenate(patches[at : at + together]) for at in range(0, len(patches) - together + 1, together)]
    return _linear(_gelu(_linear(np.stack(rows), weights, "audio_projector.net.0")), weights, "audio_projector.net.2")


def _block(x: np.ndarray, config: Mapping[str, Any], weights: Weights, name: str, heard: int) -> np.ndarray:
    first, second = (weights.get(f"{name}.{scale}.gamma", np.float64(1)) for scale in ("ls1", "ls2"))
    x = x + first * _attention(_norm(x, weights, f"{name}.norm1"), config["num_heads"], weights, f"{name}.attn", heard)
    inner = _gelu(_linear(_norm(x, weights, f"{name}.norm2"), weights, f"{name}.mlp.fc1"))
    return x + second * _linear(inner, weights, f"{name}.mlp.fc2")


def _attention(x: np.ndarray, heads: int, weights: Weights, name: str, heard: int) -> np.ndarray:
    """Head by head and query by query; what is not heard is not looked at."""
    width = x.shape[1] // heads
    query, key, value = np.split(_linear(x, weights, f"{name}.qkv"), 3, axis=1)
    found = np.zeros_like(x)
    for head in range(heads):
        inside = slice(head * width, (head + 1) * width)
        for row in range(len(x) if heard else 0):
            score = np.exp(key[:heard, inside] @ query[row, inside] / math.sqrt(width))
            found[row, inside] = score @ value[:heard, inside] / score.sum()
    return _linear(found, weights, f"{name}.proj")


def _linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    bias = weights.get(f"{name}.bias")
    product: np.ndarray = x @ weights[f"{name}.weight"].T
    return product if bias is None else product + bias


def _norm(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
    normed: np.ndarray = centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return normed


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
