"""A fingerprint knows a checkpoint from another, and each half loads without the other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.checkpoint import fingerprint, resolve
from shared.halves import load_half


@pytest.fixture
def copy(demo_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_model, tmp_path / "copy"))


def test_a_copy_is_the_same_checkpoint(demo_model: Path, copy: Path) -> None:
    assert fingerprint(copy) == fingerprint(demo_model)


def test_volatile_fields_do_not_count_but_others_do(demo_model: Path, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"transformers_version": "0.0"}))
    assert fingerprint(copy) == fingerprint(demo_model)
    (copy / "config.json").write_text(json.dumps(config | {"image_token_id": 1}))
    assert fingerprint(copy) != fingerprint(demo_model)


def test_other_weights_of_the_same_shape_are_another_checkpoint(demo_model: Path, copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    for name in ("model.visual.merger.linear_fc2.weight", "model.language_model.norm.weight"):
        changed = weights | {name: weights[name] + 1e-3}
        save_file(changed, copy / "model.safetensors", {"format": "pt"})
        assert fingerprint(copy) != fingerprint(demo_model)


def test_a_checkpoint_without_safetensors_has_no_fingerprint(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        fingerprint(copy)


def test_a_folder_without_a_configuration_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        resolve(str(tmp_path))


def test_halves_are_disjoint_and_together_the_whole(demo_model: Path) -> None:
    cpu = torch.device("cpu")
    vision = dict(load_half(demo_model, "vision", cpu, torch.float32).named_parameters())
    language = dict(load_half(demo_model, "language", cpu, torch.float32).named_parameters())
    whole = load_file(demo_model / "model.safetensors")
    assert not vision.keys() & language.keys()
    assert vision.keys() | language.keys() == whole.keys()
    assert all(torch.equal(whole[name], parameter) for name, parameter in (vision | language).items())
    assert all(name.startswith("model.visual.") for name in vision)
    assert not any("visual" in name for name in language)


def test_tied_embeddings_stay_tied(demo_model: Path) -> None:
    model = load_half(demo_model, "language", torch.device("cpu"), torch.float32)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_missing_weights_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights.pop("model.visual.blocks.0.norm1.weight")
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="lacks weights of the vision half"):
        load_half(copy, "vision", torch.device("cpu"), torch.float32)
    load_half(copy, "language", torch.device("cpu"), torch.float32)


def test_a_text_model_cannot_be_cut(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match="llama"):
        load_half(tmp_path, "vision", torch.device("cpu"), torch.float32)
