"""A fingerprint knows a checkpoint from another, also where a part of it is left out; a chat template is found everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from shared.checkpoint import chat_template_of, fingerprint, main, resolve
from tests.fake_hub import FakeHub
from tests.processes import ROOT


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


@pytest.mark.parametrize("trusted", [False, True])
def test_of_the_hub_come_weights_once_and_code_only_if_it_is_trusted(copy: Path, tmp_path: Path, trusted: bool) -> None:
    (copy / "code.py").write_text("")
    shutil.copy(copy / "model.safetensors", copy / "consolidated.safetensors")
    (copy / "pytorch_model.bin").write_bytes(b"a pickle")
    program = f"from shared.checkpoint import resolve; print(resolve('owner/model', trusted={trusted}))"
    with FakeHub("owner/model", copy) as hub:
        there = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | there, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in Path(done.stdout.strip()).iterdir()}
    left_out = {"consolidated.safetensors", "pytorch_model.bin"} | (set() if trusted else {"code.py"})
    assert names == {path.name for path in copy.iterdir()} - left_out


@pytest.fixture
def sharded(demo_model: Path, tmp_path: Path) -> Path:
    """The demo model in several files."""
    folder = tmp_path / "sharded"
    shutil.copytree(demo_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    Qwen3VLForConditionalGeneration.from_pretrained(demo_model).save_pretrained(folder, max_shard_size="2MB")
    return folder


def test_of_several_files_each_counts(sharded: Path) -> None:
    before = fingerprint(sharded)
    files = sorted(sharded.glob("*.safetensors"))
    assert len(files) > 2
    for path in files:
        weights = load_file(path)
        first = next(iter(weights))
        save_file(weights | {first: weights[first] + 1e-3}, path, {"format": "pt"})
        assert fingerprint(sharded) != before
        save_file(weights, path, {"format": "pt"})
    assert fingerprint(sharded) == before


def test_weights_that_are_not_the_models_do_not_count(copy: Path, demo_model: Path) -> None:
    shutil.copy(copy / "model.safetensors", copy / "consolidated.safetensors")
    assert fingerprint(copy) == fingerprint(demo_model)


def test_a_file_that_is_left_out_is_known_by_the_record(sharded: Path, tmp_path: Path) -> None:
    before = fingerprint(sharded)
    main([str(sharded)])
    part = Path(shutil.copytree(sharded, tmp_path / "part"))
    files = sorted(path.name for path in part.glob("*.safetensors"))
    (part / files[0]).unlink()
    assert fingerprint(sharded) == fingerprint(part) == before
    # What is there counts as it is, whatever the record says.
    weights = load_file(part / files[1])
    first = next(iter(weights))
    save_file(weights | {first: weights[first] + 1e-3}, part / files[1], {"format": "pt"})
    assert fingerprint(part) != before


def test_a_file_that_is_left_out_without_a_record_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00005.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks model-00002-of-00005\.safetensors"):
        fingerprint(sharded)
    with pytest.raises(SystemExit, match=r"not recorded: .*model-00002"):
        main([str(sharded)])


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 64, (32).to_bytes(8, "little") + b'{"a": ', (10).to_bytes(8, "little") + b'{"a": [1]}'],
    ids=["empty", "too long", "cut off", "no header"],
)
def test_a_file_in_another_format_is_named(copy: Path, content: bytes) -> None:
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is no file in the safetensors format"):
        fingerprint(copy)


def test_a_broken_index_is_named(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"index\.json does not say which file"):
        fingerprint(sharded)


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("chat_template.jinja", TEMPLATE),
        ("chat_template.json", json.dumps({"chat_template": TEMPLATE})),
        ("processor_config.json", json.dumps({"processor_class": "LlavaProcessor", "chat_template": TEMPLATE})),
        ("tokenizer_config.json", json.dumps({"chat_template": TEMPLATE})),
        (
            "tokenizer_config.json",
            json.dumps({"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": TEMPLATE}]}),
        ),
    ],
)
def test_a_chat_template_is_found_wherever_it_is(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / "processor_config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert chat_template_of(tmp_path) is None
    (tmp_path / file).write_text(content)
    assert chat_template_of(tmp_path) == TEMPLATE


def test_the_processors_chat_template_comes_before_the_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "of text"}))
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of media"}))
    assert chat_template_of(tmp_path) == "of media"
