"""``check`` says what starting a service would, before anything is started: served and how, or not and why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from services.encoder import check as encoder_check
from services.encoder.models.generic import open_half
from services.language import check as language_check
from services.language.engine.torch.runner import Runner
from shared.checkpoint import main as record
from tests.fake_hub import FakeHub
from tests.families import BUILDERS, NEED_TORCHVISION
from tests.processes import ROOT

ENCODERS = [
    pytest.param(name, marks=pytest.mark.torchvision) if name in NEED_TORCHVISION else pytest.param(name) for name in BUILDERS
]
CHECKS: dict[str, Callable[[list[str]], int]] = {"encoder": encoder_check.check, "language": language_check.check}


class Told:
    """What a check printed, and its exit status."""

    def __init__(self, status: int, printed: str) -> None:
        self.status, self.text = status, printed

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    def run(service: str, *arguments: object) -> Told:
        capsys.readouterr()
        status = CHECKS[service]([str(argument) for argument in arguments])
        return Told(status, capsys.readouterr().out)

    return run


@pytest.mark.parametrize("name", BUILDERS)
def test_the_language_half_of_every_family_is_as_large_as_told(
    checkpoint: Callable[[str], Path], check: Callable[..., Told], name: str
) -> None:
    told = check("language", checkpoint(name), "--json").json
    runner = Runner.load(checkpoint(name), "cpu", "float32", block_size=16)
    assert told["served"], told
    assert told["language"]["parameters"] == runner.parameters()
    assert told["pool"]["bytes_per_token"] == runner.bytes_per_token()
    assert told["pool"]["tokens_per_gib"] == 2**30 // runner.bytes_per_token()
    assert told["positions"] == (3 if runner.half.by_grid else 1)
    assert told["adapters"]["language"].endswith(f":{type(runner.half).__name__}")


@pytest.mark.parametrize("name", ENCODERS)
def test_the_encoder_half_of_every_family_is_as_large_as_both_services_tell(
    checkpoint: Callable[[str], Path], check: Callable[..., Told], name: str
) -> None:
    told = check("encoder", checkpoint(name), "--json").json
    half = open_half(checkpoint(name), "cpu", "float32")
    assert told["served"], told
    assert told["encoder"]["parameters"] == half.parameters
    assert told["encoder"]["memory_bytes"] >= 4 * sum(half.parameters.values())
    assert tuple(told["taken_here"]) == half.modalities
    assert told["adapters"]["encoder"].endswith(f":{type(half).__name__}")
    # Where only the other service has the class, all tensors that are left count, be they read or not.
    other = check("language", checkpoint(name), "--json").json
    for one in ("encoder", "language"):
        assert told[one]["read_bytes"] == pytest.approx(other[one]["read_bytes"], rel=1e-3)


def test_people_are_told_in_lines(check: Callable[..., Told], demo_model: Path) -> None:
    told = check("language", demo_model, "--dtype", "bfloat16")
    assert told.status == 0
    lines = told.text.splitlines()
    assert lines[0] == f"{demo_model}: served"
    assert any(line.split() == ["family", "Qwen3-VL", "(qwen3_vl)"] for line in lines)
    assert any("854,144 parameters, 1.6 MiB in bfloat16" in line for line in lines)
    assert any("positions" in line and "three axes" in line for line in lines)


def copied(folder: Path, at: Path, **fields: Any) -> Path:
    """The same checkpoint with other fields in its configuration, those of parts among the part's others."""
    shutil.copytree(folder, at)
    config = json.loads((at / "config.json").read_text())
    fields = {name: config.get(name, {}) | value if isinstance(value, dict) else value for name, value in fields.items()}
    (at / "config.json").write_text(json.dumps(config | fields))
    return at


@pytest.mark.parametrize("service", CHECKS)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_type": "nobodys"}, "models of the family nobodys are not served"),
        ({"quantization_config": {"quant_method": "torchao", "quant_type": "int8_weight_only"}}, "quantized by torchao"),
        ({"text_config": {"num_hidden_layers": 40}, "vision_config": {"depth": 40}}, "lacks weights of the"),
    ],
    ids=["family", "quantization", "weights"],
)
def test_the_reason_is_told(
    check: Callable[..., Told], demo_model: Path, tmp_path: Path, service: str, fields: dict[str, Any], reason: str
) -> None:
    folder = copied(demo_model, tmp_path / "model", **fields)
    told = check(service, folder)
    assert told.status == 1
    assert told.text.startswith(f"{folder}: not served: ")
    assert reason in told.text
    assert "\n" not in told.text.strip()
    as_json = check(service, folder, "--json")
    assert as_json.status == 1
    assert as_json.json["served"] is False
    assert reason in as_json.json["reason"]


def test_the_language_service_needs_a_chat_template(check: Callable[..., Told], demo_model: Path, tmp_path: Path) -> None:
    folder = copied(demo_model, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    assert "no chat template" in check("language", folder).text
    assert check("encoder", folder).status == 0


def test_a_decoder_that_cannot_be_paged_is_refused(
    check: Callable[..., Told], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    config = json.loads((checkpoint("internvl") / "config.json").read_text())
    layers = ["linear_attention"] * len(config["text_config"]["layer_types"])
    folder = copied(checkpoint("internvl"), tmp_path / "model", text_config={"layer_types": layers})
    told = check("language", folder)
    assert told.status == 1
    assert "cannot run on the paged engine" in told.text


@pytest.mark.parametrize("service", CHECKS)
def test_files_of_the_other_half_need_not_be_there_but_recorded(
    check: Callable[..., Told], demo_model: Path, tmp_path: Path, service: str
) -> None:
    folder = copied(demo_model, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{'visual' in name}.safetensors" for name in weights}
    for file in set(places.values()):
        save_file({name: weights[name] for name in weights if places[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    left_out = folder / f"model-{service == 'language'}.safetensors"
    content = left_out.read_bytes()
    left_out.unlink()
    assert f"lacks {left_out.name}" in check(service, folder).text
    left_out.write_bytes(content)
    record([str(folder)])
    left_out.unlink()
    told = check(service, folder, "--json").json
    assert told["served"]
    assert told[service]["parameters_total"] > 0
    assert told["encoder" if service == "language" else "language"] is None


def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_of_the_hub_only_what_describes_the_model_is_fetched(demo_model: Path, tmp_path: Path) -> None:
    with FakeHub("owner/model", demo_model) as hub:
        there = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        done = start("services.language", "check", "owner/model", **there)
        assert done.returncode == 0, done.stderr
        assert "owner/model: served" in done.stdout
        assert "854,144 parameters" in done.stdout
        assert hub.fetched["model.safetensors"] < (demo_model / "model.safetensors").stat().st_size / 10
        assert not list(tmp_path.rglob("*.safetensors"))
        done = start("services.encoder", "check", "owner/another", "--json", **there)
        assert done.returncode == 1
        assert "owner/another" in json.loads(done.stdout)["reason"]


@pytest.mark.parametrize("service", CHECKS)
@pytest.mark.parametrize("arguments", [["--dtype", "int3"], ["--no-such-flag"]])
def test_wrong_command_lines_are_told_apart_from_wrong_checkpoints(
    capsys: pytest.CaptureFixture[str], service: str, arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        CHECKS[service](arguments)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert not told.out
    assert arguments[0].strip("-") in told.err


def test_foreign_code_is_named_and_not_run(demo_model: Path, tmp_path: Path) -> None:
    folder = copied(demo_model, tmp_path / "model", auto_map={"AutoConfig": "code.Config"}, model_type="its_own")
    trap = tmp_path / "trap"
    (folder / "code.py").write_text(f"open({str(trap)!r}, 'w')\n")
    (tmp_path / "own_family.py").write_text("from shared.families import Family\nFAMILY = Family('its_own', 'Its own')\n")
    variables = {"PYTHONPATH": str(tmp_path), "EPD_FAMILIES": "own_family", "HF_HOME": str(tmp_path / "home")}
    done = start("services.language", "check", str(folder), **variables)
    assert done.returncode == 1
    assert "EPD_TRUST_REMOTE_CODE=true runs it" in done.stdout
    assert not trap.exists()
    start("services.language", "check", str(folder), "--trust-remote-code", **variables)
    assert trap.exists()
