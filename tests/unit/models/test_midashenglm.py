"""MiDashengLM's audio half computes what its formulas say, takes sounds of any length, and reads no tensors but its own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

from services.encoder.media import Sound
from services.encoder.models.generic import EncoderHalf, open_half
from services.encoder.models.mel import LogMel, mel_bands
from shared.errors import InvalidMedia
from shared.families import open_family
from shared.foreign import read_part
from shared.layout import Layout
from shared.midashenglm import DashengConfig
from tests.families.dasheng import log_mel, triangles
from tests.families.midashenglm import CHUNK, PATCH, RATE, TOWER, TOWER_DEFAULTS, Undivided, midashenglm

FRONT_END = DashengConfig(**TOWER)
FORMULAS: dict[str, Any] = {**TOWER_DEFAULTS, **TOWER}
SHORTEST = 19 * 160
"""Samples of the first sound that has a token: 20 frames, the first of them around its first sample."""
LAST_UNHEARD = 3 * 160
"""Samples after whole patches with which there is one patch more, half of it past the end."""


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=samples) * 0.1).astype(np.float32)


def opened(folder: Path, dtype: str = "float32") -> EncoderHalf:
    return open_half(folder, "cpu", dtype)


def embeds(half: EncoderHalf, *sounds: np.ndarray) -> list[Tensor]:
    """The embeddings of sounds that go through the tower together."""
    items = [half.preprocess(Sound(samples, RATE)) for samples in sounds]
    counts = [item.num_tokens for item in items]
    half.encode(items)
    found = [item.embeds for item in items if item.embeds is not None]
    assert [len(each) for each in found] == counts
    return found


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Makes the checkpoint one file, with changed tensors."""
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(change(weights), folder / "model.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return midashenglm(tmp_path_factory.mktemp("midashenglm"))


@pytest.fixture(scope="module")
def half(folder: Path) -> EncoderHalf:
    return opened(folder)


@pytest.fixture(scope="module")
def undivided(folder: Path) -> Undivided:
    return Undivided(folder)


# ----------------------------------------------------------------------------------------------------------- front end


@pytest.mark.parametrize("more", [{}, {"n_mels": 40, "f_min": 60.0, "f_max": 7600.0, "n_fft": 400, "win_length": 400}])
def test_bands_are_triangles_that_are_evenly_spaced_in_mel(more: dict[str, Any]) -> None:
    bands = mel_bands(DashengConfig(**{**TOWER, **more}))
    assert np.abs(bands.numpy().T - triangles({**FORMULAS, **more})).max() < 1e-7


def test_decibels_of_noise_are_those_of_the_formulas() -> None:
    for samples in (257, 3040, 16_000, 16_159):
        sound = noise(samples, samples)
        found, wanted = LogMel(FRONT_END)(torch.from_numpy(sound)).numpy(), log_mel(sound, FORMULAS)
        assert found.shape == wanted.shape == (64, 1 + samples // 160)
        assert np.abs(found - wanted).max() < 1e-4


def test_decibels_of_a_tone_are_exact_as_far_down_as_float32_goes() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE).astype(np.float32)
    found, wanted = LogMel(FRONT_END)(torch.from_numpy(tone)).numpy(), log_mel(tone, FORMULAS)
    loud = wanted > wanted.max() - 70
    assert np.abs(found - wanted)[loud].max() < 1e-3
    assert np.abs(found - wanted).max() < 0.5


def test_silence_has_the_least_power_there_is() -> None:
    assert (LogMel(FRONT_END)(torch.zeros(3200)) == -100.0).all()


def test_nothing_is_further_below_the_loudest_than_120_decibels() -> None:
    sound = torch.zeros(6400)
    sound[:800] = torch.from_numpy(noise(800)) * 1000
    found = LogMel(FRONT_END)(sound)
    assert found.min().item() == pytest.approx(found.max().item() - 120)


# --------------------------------------------------------------------------------------------------------------- tower


@pytest.mark.parametrize(
    "samples",
    [
        SHORTEST,
        5 * PATCH,
        CHUNK * PATCH - 161,
        CHUNK * PATCH - 160,
        CHUNK * PATCH,
        CHUNK * PATCH + LAST_UNHEARD,
        CHUNK * PATCH + PATCH - 1,
        20 * PATCH,
        2 * CHUNK * PATCH,
        2 * CHUNK * PATCH + 9 * PATCH,
        4 * CHUNK * PATCH + LAST_UNHEARD,  # whose last chunk has one patch, which is not heard, and makes a token
    ],
)
def test_embeddings_are_those_of_the_formulas(half: EncoderHalf, undivided: Undivided, samples: int) -> None:
    sound = noise(samples, samples)
    (found,) = embeds(half, sound)
    wanted = undivided.embeddings(sound)
    assert found.shape == wanted.shape
    assert np.abs(found.numpy() - wanted).max() < 1e-5


def test_silence_has_finite_embeddings(half: EncoderHalf, undivided: Undivided) -> None:
    silence = np.zeros(2 * RATE, np.float32)
    (found,) = embeds(half, silence)
    assert np.abs(found.numpy() - undivided.embeddings(silence)).max() < 1e-5


@pytest.mark.parametrize("tower", [{"init_values": 1e-5}, {"qkv_bias": False}, {"num_heads": 4, "mlp_ratio": 3.0, "depth": 3}])
def test_other_towers_too(tower: dict[str, Any], tmp_path: Path) -> None:
    midashenglm(tmp_path, tower)
    sound = noise(30_000)
    (found,) = embeds(opened(tmp_path), sound)
    assert np.abs(found.numpy() - Undivided(tmp_path).embeddings(sound)).max() < 1e-5


def test_norms_of_patches_that_hardly_differ(tmp_path: Path) -> None:
    """There what is added to the variance counts."""
    midashenglm(tmp_path)

    def smaller(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor * 1e-3 if "_embed" in name else tensor for name, tensor in weights.items()}

    rewrite(tmp_path, smaller)
    sound = noise(RATE)
    (found,) = embeds(opened(tmp_path), sound)
    assert np.abs(found.numpy() - Undivided(tmp_path).embeddings(sound)).max() < 1e-4


def test_sounds_that_go_together_do_not_change_each_other(half: EncoderHalf) -> None:
    lengths = [SHORTEST, 2 * RATE, 12 * RATE, 5 * PATCH, 2 * RATE + 77, CHUNK * PATCH, 2 * CHUNK * PATCH]
    sounds = [noise(samples, seed) for seed, samples in enumerate(lengths)]
    for sound, found in zip(sounds, embeds(half, *sounds), strict=True):
        (alone,) = embeds(half, sound)
        assert torch.allclose(found, alone, atol=1e-5)


def test_chunks_do_not_attend_to_each_other(half: EncoderHalf) -> None:
    """What changes where the last window of two chunks ends does not change their 32 patches, of which 30 are six tokens."""
    sound = noise(5 * CHUNK * PATCH)
    other = sound.copy()
    other[2 * CHUNK * PATCH + 256 :] = noise(3 * CHUNK * PATCH - 256, 1)
    (first,), (second,) = embeds(half, sound), embeds(half, other)
    assert torch.allclose(first[:6], second[:6], atol=1e-5)
    assert not torch.allclose(first[7:], second[7:], atol=1e-2)


def test_tokens_are_as_many_as_the_published_processor_counts(half: EncoderHalf) -> None:
    for samples in [*range(SHORTEST, 8000, 53), 10_239, 10_240, 16_000, 160_000, 30 * RATE]:
        item = half.preprocess(Sound(noise(samples), RATE))
        assert item.num_tokens == (1 + samples // 160) // 4 // 5
        assert item.layout == Layout(((half.config.audio_token_id, item.num_tokens),))


def test_half_precision_begins_after_the_decibels(folder: Path, undivided: Undivided) -> None:
    half = opened(folder, "bfloat16")
    kinds = {name: tensor.dtype for name, tensor in half._model.state_dict().items()}
    full = {name for name, kind in kinds.items() if kind is torch.float32}
    assert full == {name for name in kinds if name.startswith(("audio_encoder.front_end.", "audio_encoder.init_bn."))}
    sound = noise(RATE)
    (found,) = embeds(half, sound)
    assert found.dtype is torch.bfloat16
    assert np.abs(found.float().numpy() - undivided.embeddings(sound)).max() < 0.1


@pytest.mark.parametrize("center", [True, False])
def test_patches_are_counted_as_frames_are_made(center: bool) -> None:
    config = DashengConfig(**TOWER, center=center)
    for patches in (1, 2, 5, 40):
        least = config.samples(patches)
        assert config.patches(least) == patches
        assert config.patches(least - 1) == patches - 1
        assert LogMel(config)(torch.zeros(least)).shape[1] == 4 * patches


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("samples", [0, 1, 256, SHORTEST - 1])
def test_a_sound_without_a_token_is_refused(half: EncoderHalf, samples: int) -> None:
    with pytest.raises(InvalidMedia, match=rf"lasts {samples / RATE:.3f} s; it must last 0.19 s at least"):
        half.preprocess(Sound(np.zeros(samples, np.float32), RATE))


@pytest.mark.parametrize("sample", [math.nan, math.inf, -math.inf, 1e30])
def test_samples_that_are_no_numbers_are_refused(half: EncoderHalf, sample: float) -> None:
    sound = noise(RATE)
    sound[5000] = sample
    with pytest.raises(InvalidMedia, match="samples that are not numbers"):
        half.preprocess(Sound(sound, RATE))


def test_patches_that_do_not_cover_all_mels_are_refused(tmp_path: Path) -> None:
    midashenglm(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["audio_encoder_config"] |= {"patch_size": [16, 16], "patch_stride": [16, 16]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="must cover all 64 mels"):
        opened(tmp_path)


# -------------------------------------------------------------------------------------------------------------- loading


def test_the_other_halfs_tensors_are_not_read(half: EncoderHalf, tmp_path: Path) -> None:
    midashenglm(tmp_path)
    rewrite(tmp_path, lambda all_: {name: tensor for name, tensor in all_.items() if not name.startswith("decoder.")})
    sound = noise(RATE)
    assert torch.equal(embeds(opened(tmp_path), sound)[0], embeds(half, sound)[0])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    midashenglm(tmp_path)
    rewrite(tmp_path, lambda all_: {name: tensor for name, tensor in all_.items() if name != "audio_projector.net.2.bias"})
    with pytest.raises(ValueError, match=r"lacks weights of the encoder half.*audio_projector\.net\.2\.bias"):
        opened(tmp_path)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    midashenglm(tmp_path)
    rewrite(tmp_path, lambda all_: {**all_, "audio_encoder.norm.bias": torch.zeros(7)})
    with pytest.raises(ValueError, match=r"audio_encoder\.norm\.bias is \[7\] and not \[32\]"):
        opened(tmp_path)


def test_the_checkpoints_own_bands_count_and_are_computed_where_it_has_none(half: EncoderHalf, tmp_path: Path) -> None:
    """Newer published checkpoints leave them out."""
    sound = noise(RATE)
    (wanted,) = embeds(half, sound)
    louder, without = midashenglm(tmp_path / "louder"), midashenglm(tmp_path / "without")
    rewrite(
        louder, lambda all_: {name: tensor * 10 if name.endswith("mel_scale.fb") else tensor for name, tensor in all_.items()}
    )
    rewrite(without, lambda all_: {name: tensor for name, tensor in all_.items() if "front_end" not in name})
    assert torch.allclose(embeds(opened(without), sound)[0], wanted, atol=1e-5)
    assert not torch.allclose(embeds(opened(louder), sound)[0], wanted, atol=1e-2)


def test_no_code_of_the_checkpoint_is_run(tmp_path: Path) -> None:
    """The published configuration names some. It is not needed, so it is not run where that would be allowed, either."""
    midashenglm(tmp_path)
    for name in ("configuration", "modeling", "processing"):
        (tmp_path / f"{name}_midashenglm.py").write_text("raise SystemExit('this must not run')\n")
    _, config = open_family(tmp_path)
    assert type(config.audio_encoder_config) is DashengConfig
    assert type(read_part(AutoConfig, tmp_path, trusted=True)) is type(config)
    assert opened(tmp_path).sound_rate == RATE


def test_features_wait_on_the_cpu(half: EncoderHalf) -> None:
    assert half.precompute_hash_before_cpu_transfer
    item = half.preprocess(Sound(noise(RATE), RATE))
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in item.features.items()} == {
        "input_values": (torch.float32, (RATE,))
    }
