"""Quantized checkpoints: each half is as in the undivided model, and what cannot be loaded here is refused with a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from shared.halves import load_half, sketch_half
from shared.products import use_products
from shared.weights import stored_tensors
from tests.families import make
from tests.quantized import rounded, to_fp8, to_int4
from tests.reading import of_half
from tests.unit.engine.harness import Model, picture, run
from tests.unit.test_halves import CPU, HALVES, numbers, read_apart

DECODER = r"language_model\.layers\..*proj\.weight$"
TOWER = r"visual\.blocks\..*(fc1|fc2|qkv|proj)\.weight$"
MERGERS = ["lm_head", r"re:.*merger.*"]

METHODS: dict[str, Callable[[Path, Path], Path]] = {
    "fp8": lambda folder, at: to_fp8(folder, at, DECODER, ["model.visual", "lm_head"]),
    "int4": lambda folder, at: to_int4(folder, at, DECODER, [*MERGERS, r"re:.*visual.*"]),
    "int4 in both halves": lambda folder, at: to_int4(folder, at, f"{DECODER}|{TOWER}", MERGERS),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen3_vl", tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=METHODS)
def quantized(request: pytest.FixtureRequest, plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return METHODS[request.param](plain, tmp_path_factory.mktemp("quantized") / "model")


def undivided(folder: Path) -> Any:
    config = AutoConfig.from_pretrained(folder)
    model = MODEL_FOR_MULTIMODAL_LM_MAPPING[type(config)].from_pretrained(folder, dtype=torch.float32).eval()
    compressor = getattr(getattr(model, "hf_quantizer", None), "compressor", None)
    if compressor is not None:
        compressor.decompress_model(model)
    return model


def assert_halves_of(folder: Path, whole: Any) -> None:
    # The undivided model also keeps what its weights were unpacked with.
    expected = {name: value for name, value in numbers(whole).items() if not name.endswith(("weight_scale", "weight_shape"))}
    found = {name: value for half in HALVES for name, value in numbers(load_half(folder, half, CPU, torch.float32)).items()}
    assert found.keys() == expected.keys()
    wrong = [
        name for name, value in found.items() if value.dtype != expected[name].dtype or not torch.equal(value, expected[name])
    ]
    assert wrong == []


def test_halves_are_those_of_the_undivided_model(quantized: Path) -> None:
    assert_halves_of(quantized, undivided(quantized))


def test_experts_are_unpacked_as_kimi_packs_them(tmp_path: Path) -> None:
    folder = make("kimi_k25", tmp_path / "plain")
    experts = r"experts\.\d+\.\w+_proj\.weight$"
    untouched = ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*"]
    packed = to_int4(
        folder, tmp_path / "packed", experts, [*untouched, "re:vision_tower.*", "re:mm_projector.*"], "text_config"
    )
    assert sum(name.endswith("weight_packed") for name in stored_tensors(packed)) == 2 * 4 * 3
    assert_halves_of(packed, undivided(rounded(folder, tmp_path / "rounded", experts)))


def test_tokens_are_those_of_the_undivided_model(quantized: Path, plain: Path) -> None:
    model, exact = Model(quantized), Model(plain)
    model.whole = undivided(quantized)
    parts = ["First: ", picture(1), " second: ", picture(2, 64, 32), "Describe them."]
    tokens = run(model.core(), {0: model.request(parts)})[0]
    assert tokens == model.expected(parts)
    assert tokens != exact.expected(parts)


def test_only_a_halfs_own_tensors_are_read(quantized: Path) -> None:
    outcomes = read_apart([{"folder": str(quantized), "half": half} for half in HALVES])
    stored = stored_tensors(quantized)
    assert [outcome.get("read") for outcome in outcomes] == [
        sorted(name for name in stored if of_half(name, half)) for half in HALVES
    ]


def test_a_sketch_says_what_is_read_and_what_it_becomes(quantized: Path, plain: Path) -> None:
    for half in HALVES:
        stored = stored_tensors(quantized)
        sketch = sketch_half(AutoConfig.from_pretrained(quantized), half, torch.bfloat16, stored)
        exact = sketch_half(AutoConfig.from_pretrained(plain), half, torch.bfloat16, stored_tensors(plain))
        assert sketch.parameters == exact.parameters
        assert sketch.weight_bytes == 2 * sum(sketch.parameters.values())
        assert sketch.names == {name for name in stored if of_half(name, half)}


def claiming(plain: Path, at: Path, **settings: Any) -> Path:
    """The same checkpoint, whose configuration says that it is quantized."""
    shutil.copytree(plain, at)
    config = json.loads((at / "config.json").read_text())
    (at / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return at


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"quant_method": "torchao", "quant_type": "int8_weight_only"},
            "quantized by torchao, which cannot be loaded here: .*torchao",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, r"quantized by bitsandbytes, which .*install.* bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4}, r"quantized by gptq, which .*optimum"),
        ({"quant_method": "invented"}, "quantized by invented, which transformers does not load"),
    ],
)
def test_what_cannot_be_loaded_here_is_refused_by_name(
    plain: Path, tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    folder = claiming(plain, tmp_path / "model", **settings)
    for half in HALVES:
        with pytest.raises(ValueError, match=complaint):
            load_half(folder, half, CPU, torch.float32)
        with pytest.raises(ValueError, match=complaint):
            sketch_half(AutoConfig.from_pretrained(folder), half, torch.float32, stored_tensors(folder))


def test_a_package_that_is_not_installed_is_named(quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = "transformers.quantizers.quantizer_finegrained_fp8.is_accelerate_available"
    monkeypatch.setattr(absent, lambda: False)
    monkeypatch.setattr("transformers.utils.quantization_config.is_compressed_tensors_available", lambda: False)
    with pytest.raises(ValueError, match=r"pip install (accelerate|compressed-tensors)"):
        load_half(quantized, "language", CPU, torch.float32)


def test_layers_with_packed_weights_keep_their_own_product(monkeypatch: pytest.MonkeyPatch) -> None:
    class Packed(torch.Tensor):
        """A weight as quantizers make them, which only their own code can multiply with."""

    monkeypatch.setattr("shared.products.mkl_is_slow", lambda: True)
    model = nn.ModuleDict({"packed": nn.Linear(4, 4), "plain": nn.Linear(4, 4)})
    model["packed"].weight = nn.Parameter(torch.zeros(4, 4).as_subclass(Packed))
    use_products(model)
    assert type(model["packed"]) is nn.Linear
    assert type(model["plain"]) is not nn.Linear
