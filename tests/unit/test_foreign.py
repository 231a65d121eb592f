"""Code that a checkpoint brings along runs only when that is asked for, and where transformers has no code of its own."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from shared.foreign import read_part
from shared.halves import empty_half, load_half
from tests.reading import of_half

CODE = {
    "configuration_own.py": """
        from transformers import Qwen3VLConfig

        class OwnConfig(Qwen3VLConfig):
            model_type = "its_own"
    """,
    "modeling_own.py": """
        from transformers import Qwen3VLForConditionalGeneration
        from .configuration_own import OwnConfig

        class OwnForConditionalGeneration(Qwen3VLForConditionalGeneration):
            config_class = OwnConfig
    """,
    "tokenization_own.py": """
        from transformers import PreTrainedTokenizerFast

        class OwnTokenizer(PreTrainedTokenizerFast):
            own = True
    """,
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Transformers keeps code that it runs in a folder, which is here another one, and gone from the interpreter afterwards."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """There once any code of the checkpoint has run."""
    return tmp_path / "trap"


def own_code(demo_model: Path, folder: Path, trap: Path, model_type: str = "its_own") -> Path:
    """The demo model as a checkpoint with code for all of its parts."""
    shutil.copytree(demo_model, folder)
    for name, code in CODE.items():
        (folder / name).write_text(f"open({str(trap)!r}, 'w').close()\n" + textwrap.dedent(code))
    models = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForImageTextToText": "modeling_own.OwnForConditionalGeneration",
    }
    change(folder / "config.json", model_type=model_type, auto_map=models)
    tokenizers = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}
    change(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=tokenizers)
    return folder


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("auto", [AutoConfig, AutoTokenizer])
def test_no_code_runs_unasked(demo_model: Path, tmp_path: Path, trap: Path, auto: Any) -> None:
    folder = own_code(demo_model, tmp_path / "model", trap)
    with pytest.raises(ValueError, match=r"has Python code of its own .*; EPD_TRUST_REMOTE_CODE=true runs it"):
        read_part(auto, folder)
    assert not trap.exists()


def test_nor_does_it_when_weights_are_loaded(demo_model: Path, tmp_path: Path, trap: Path) -> None:
    folder = own_code(demo_model, tmp_path / "model", trap)
    with pytest.raises(ValueError, match="EPD_TRUST_REMOTE_CODE"):
        load_half(folder, "vision", torch.device("cpu"), torch.float32)
    assert not trap.exists()


def test_code_that_is_trusted_makes_both_halves(demo_model: Path, tmp_path: Path, trap: Path) -> None:
    folder = own_code(demo_model, tmp_path / "model", trap)
    config = read_part(AutoConfig, folder, trusted=True)
    assert type(config).__name__ == "OwnConfig"
    assert trap.exists()
    assert read_part(AutoTokenizer, folder, trusted=True).own
    weights = load_file(demo_model / "model.safetensors")
    for half in ("vision", "language"):
        loaded = load_half(folder, half, torch.device("cpu"), torch.float32, config)
        assert type(loaded).__name__ == type(empty_half(config, half)).__name__ == "OwnForConditionalGeneration"
        found = dict(loaded.named_parameters())
        assert found.keys() == {name for name in weights if of_half(name, half)}
        assert all(torch.equal(weights[name], value) for name, value in found.items())


def test_where_transformers_has_code_that_is_taken_even_if_the_other_is_trusted(
    demo_model: Path, tmp_path: Path, trap: Path
) -> None:
    folder = own_code(demo_model, tmp_path / "model", trap, model_type="qwen3_vl")
    assert type(read_part(AutoConfig, folder, trusted=True)).__name__ == "Qwen3VLConfig"
    assert read_part(AutoTokenizer, folder, trusted=True).encode("a red circle")
    load_half(folder, "language", torch.device("cpu"), torch.float32)
    assert not trap.exists()


def test_other_errors_are_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nobodys"}))
    with pytest.raises(ValueError, match="nobodys"):
        read_part(AutoConfig, tmp_path)
