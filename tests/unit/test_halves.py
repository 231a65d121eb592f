"""Each half loads without the other: from one file or several, under published or present names, and of nothing but its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from shared.halves import Half, load_half, sketch_half
from shared.weights import stored_tensors
from tests.families import BUILDERS
from tests.processes import ROOT
from tests.reading import of_half, places

CPU = torch.device("cpu")
HALVES: tuple[Half, ...] = ("vision", "language")
CUT = tuple(name for name in BUILDERS if name != "midashenglm")
"""Those whose undivided model is a class of transformers."""

UNREAD = ("num_batches_tracked",)
"""What only training reads."""

PUBLISHED: dict[str, tuple[tuple[str, str], ...]] = {
    "llava": ((r"^vision_tower\.", "vision_tower.vision_model."),),
    "llava_onevision": ((r"^vision_tower\.", "vision_tower.vision_model."),),
    "gemma3": ((r"^vision_tower\.", "vision_tower.vision_model."),),
    "ernie4_5_vl_moe": ((r"^model\.vision_model\.", "vision_model."),),
    "kimi_k25": (
        (r"^language_model\.model\.blocks\.", "language_model.model.layers."),
        (r"^model\.mm_projector\.", "mm_projector."),
        (r"^vision_tower\.encoder\.patch_embed\.", "vision_tower.patch_embed."),
    ),
}
"""What published checkpoints call otherwise than transformers does when it saves one."""


def whole(folder: Path) -> Any:
    config = AutoConfig.from_pretrained(folder)
    return MODEL_FOR_MULTIMODAL_LM_MAPPING[type(config)].from_pretrained(folder, dtype=torch.float32).eval()


def numbers(model: Any) -> dict[str, Tensor]:
    """All that a model computes with, by name; what is tied, by each of its names."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())


def assert_halves_of(folder: Path, model: Any) -> None:
    """Both halves that are loaded of a checkpoint have the numbers of the undivided model, each its own, together all."""
    expected = numbers(model)
    found: dict[str, Tensor] = {}
    for half in HALVES:
        part = numbers(load_half(folder, half, CPU, torch.float32))
        assert part
        assert all(of_half(name, half) for name in part)
        found |= part
    assert found.keys() == expected.keys()
    assert [name for name, value in found.items() if not torch.equal(value, expected[name])] == []


def with_weights(folder: Path, at: Path, weights: dict[str, Tensor]) -> Path:
    """The same checkpoint with other weights."""
    at.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (at / path.name).write_bytes(path.read_bytes())
    save_file(weights, at / "model.safetensors", {"format": "pt"})
    return at


@pytest.mark.parametrize("name", CUT)
def test_halves_are_those_of_the_undivided_model(checkpoint: Callable[[str], Path], name: str) -> None:
    assert_halves_of(checkpoint(name), whole(checkpoint(name)))


@pytest.mark.parametrize("name", CUT)
def test_transformers_own_names_are_known(checkpoint: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    model = whole(checkpoint(name))
    folder = with_weights(checkpoint(name), tmp_path / "own", {})
    model.save_pretrained(folder, save_original_format=False)
    assert_halves_of(folder, model)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_names_are_known(checkpoint: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    weights = load_file(checkpoint(name) / "model.safetensors")
    for pattern, published in PUBLISHED[name]:
        assert any(re.search(pattern, tensor) for tensor in weights)
        weights = {re.sub(pattern, published, tensor): value for tensor, value in weights.items()}
    assert_halves_of(with_weights(checkpoint(name), tmp_path / "published", weights), whole(checkpoint(name)))


def test_only_a_halfs_own_tensors_are_read(checkpoint: Callable[[str], Path]) -> None:
    cases = [(name, half) for name in BUILDERS for half in HALVES]
    outcomes = read_apart([{"folder": str(checkpoint(name)), "half": half} for name, half in cases])
    for (name, half), outcome in zip(cases, outcomes, strict=True):
        stored = [places(path) for path in checkpoint(name).glob("*.safetensors")]
        sizes = {tensor: end - begin for found in stored for tensor, (begin, end) in found.items()}
        own = sorted(tensor for tensor in sizes if of_half(tensor, half) and not tensor.endswith(UNREAD))
        assert outcome.get("read") == own, (name, half, outcome)
        # What is left of the other half could be read by mistake; it shares its pages with this one, or the header.
        others = sum(sizes.values()) - sum(sizes[tensor] for tensor in own)
        assert outcome["pages"] * 4096 > 0.7 * others, (name, half)


def test_the_test_of_it_sees_what_is_read(checkpoint: Callable[[str], Path]) -> None:
    cases = [{"folder": str(checkpoint("qwen3_vl")), "half": half, "touch": True} for half in HALVES]
    assert [outcome.get("signal") for outcome in read_apart(cases)] == [11, 11]


@pytest.fixture
def sharded(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkpoint in files of a few tensors each, most of which belong to one half alone."""
    folder = with_weights(checkpoint("llava"), tmp_path / "sharded", {})
    (folder / "model.safetensors").unlink()
    whole(checkpoint("llava")).save_pretrained(folder, max_shard_size="60KB")
    return folder


def files_of(folder: Path, half: Half) -> set[str]:
    """The weight files that have tensors of a half."""
    return {path.name for path in folder.glob("*.safetensors") if any(of_half(name, half) for name in places(path))}


def test_only_files_with_own_tensors_are_opened(sharded: Path, checkpoint: Callable[[str], Path]) -> None:
    own = {half: files_of(sharded, half) for half in HALVES}
    assert all(own["vision"] - own["language"]), own
    assert own["language"] - own["vision"]
    outcomes = read_apart([{"folder": str(sharded), "half": half} for half in HALVES])
    assert [set(outcome["opened"]) for outcome in outcomes] == [own[half] for half in HALVES]
    assert_halves_of(sharded, whole(checkpoint("llava")))


@pytest.mark.parametrize("half", HALVES)
def test_files_of_the_other_half_need_not_be_there(sharded: Path, half: Half) -> None:
    everything = {path.name for path in sharded.glob("*.safetensors")}
    before = numbers(load_half(sharded, half, CPU, torch.float32))
    for name in everything - files_of(sharded, half):
        (sharded / name).unlink()
    after = numbers(load_half(sharded, half, CPU, torch.float32))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    missing = min(files_of(sharded, half))
    (sharded / missing).unlink()
    with pytest.raises(OSError, match=missing):
        load_half(sharded, half, CPU, torch.float32)


def test_tied_embeddings_stay_tied(demo_model: Path) -> None:
    model = load_half(demo_model, "language", CPU, torch.float32)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert not load_half(demo_model, "vision", CPU, torch.float32).all_tied_weights_keys


def broken(folder: Path, at: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    return with_weights(folder, at, weights)


@pytest.mark.parametrize(("half", "other"), [HALVES, HALVES[::-1]])
def test_missing_weights_are_named_and_those_of_the_other_half_not_missed(
    checkpoint: Callable[[str], Path], tmp_path: Path, half: Half, other: Half
) -> None:
    def leave_out(weights: dict[str, Tensor]) -> None:
        for name in [name for name in weights if of_half(name, other) or "layers.1." in name or "blocks.1." in name]:
            del weights[name]

    folder = broken(checkpoint("qwen2_vl"), tmp_path / "broken", leave_out)
    named = rf"lacks weights of the {half} half: model\.[\w.]+\.1\.[\w.]+, .* and \d+ more"
    with pytest.raises(ValueError, match=named):
        load_half(folder, half, CPU, torch.float32)
    with pytest.raises(ValueError, match=named):
        sketch_half(AutoConfig.from_pretrained(folder), half, torch.float32, stored_tensors(folder))
    with pytest.raises(ValueError, match=f"lacks weights of the {other} half"):
        load_half(folder, other, CPU, torch.float32)
    complete = broken(checkpoint("qwen2_vl"), tmp_path / "half", lambda weights: drop(weights, other))
    load_half(complete, half, CPU, torch.float32)


def drop(weights: dict[str, Tensor], half: Half) -> None:
    for name in [name for name in weights if of_half(name, half)]:
        del weights[name]


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        (
            "qwen2_vl",
            lambda weights: weights.update({"model.norm.weight": torch.ones(3)}),
            r"do not fit its configuration: model\.language_model\.norm\.weight is \[3\] and not \[64\]",
        ),
        (
            "glm4v_moe",
            lambda weights: weights.pop("model.language_model.layers.1.mlp.experts.2.up_proj.weight"),
            r"half cannot be converted: model\.language_model\.layers\.1\.mlp\.experts\.gate_up_proj",
        ),
        (
            "glm4v_moe",
            lambda weights: weights.pop("model.language_model.layers.1.mlp.experts.3.down_proj.weight"),
            r"experts\.down_proj is \[3, 64, 48\] and not \[4, 64, 48\]",
        ),
    ],
    ids=["another shape", "half of an expert missing", "an expert missing"],
)
def test_weights_that_do_not_fit_are_named(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, change: Callable[[Any], object], complaint: str
) -> None:
    folder = broken(checkpoint(name), tmp_path / "broken", change)
    with pytest.raises(ValueError, match=complaint):
        load_half(folder, "language", CPU, torch.float32)
    with pytest.raises(ValueError, match=complaint):
        sketch_half(AutoConfig.from_pretrained(folder), "language", torch.float32, stored_tensors(folder))
    load_half(folder, "vision", CPU, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CUT)
def test_a_sketch_says_what_a_half_takes(checkpoint: Callable[[str], Path], name: str, dtype: torch.dtype) -> None:
    stored = stored_tensors(checkpoint(name))
    for half in HALVES:
        sketch = sketch_half(AutoConfig.from_pretrained(checkpoint(name)), half, dtype, stored)
        model = load_half(checkpoint(name), half, CPU, dtype)
        loaded = [*model.parameters(), *model.buffers()]
        assert sketch.weight_bytes == sum(tensor.numel() * tensor.element_size() for tensor in loaded)
        assert sum(sketch.parameters.values()) == sum(parameter.numel() for parameter in model.parameters())
        assert sketch.names == {tensor for tensor in stored if of_half(tensor, half)}


def test_a_text_model_cannot_be_cut(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match="llama"):
        load_half(tmp_path, "vision", CPU, torch.float32)


def read_apart(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reading"], cwd=ROOT, input=json.dumps(cases), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    return outcomes
