"""The fleet's arguments are checked before anything starts, and the files in deploy/ray are what Serve and the fleet take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from services import fleet
from services.encoder.settings import EncoderSettings
from services.fleet.options import FleetOptions, Needs
from services.language.settings import LanguageSettings
from tests.processes import DEMO_MODEL, ROOT


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPD_MODEL", raising=False)


FILES = sorted((ROOT / "deploy" / "ray").glob("*.yaml"))


def test_both_files_are_there() -> None:
    assert [file.name for file in FILES] == ["demo.yaml", "gpu-cluster.yaml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_what_serve_and_the_fleet_take(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    parsed = ServeDeploySchema.model_validate(yaml.safe_load(file.read_text()))
    (app,) = parsed.applications
    assert app.import_path == "services.fleet:app"
    options = FleetOptions.model_validate(app.args)
    EncoderSettings(**options.given(options.encoders))
    LanguageSettings(**options.given(options.languages))
    fleet.app(options)


def test_the_gpu_cluster_keeps_encoders_and_language_services_on_gpus_of_their_own() -> None:
    file = yaml.safe_load((ROOT / "deploy" / "ray" / "gpu-cluster.yaml").read_text())
    options = FleetOptions.model_validate(file["applications"][0]["args"])
    encoders, languages = options.encoders.needs, options.languages.needs
    assert 0 < encoders.num_gpus < 1
    assert not encoders.resources.keys() & languages.resources.keys()
    assert encoders.accelerator_type != languages.accelerator_type
    assert languages.num_gpus == options.languages.settings["vllm_args"]["tensor_parallel_size"]


def test_the_demo_model_is_found_wherever_replicas_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert FleetOptions().model == str(DEMO_MODEL)
    (tmp_path / "mine").mkdir()
    assert FleetOptions(model="mine").model == str(tmp_path / "mine")
    assert FleetOptions(model="owner/name").model == "owner/name"


def test_settings_of_a_service_are_its_own_over_those_of_the_fleet() -> None:
    options = FleetOptions.model_validate(
        {
            "model": "owner/name",
            "secret_file": "/etc/secret",
            "encoders": {"settings": {"max_items": 9}},
            "languages": {"settings": {"model": "owner/other"}},
        }
    )
    secret = Path("/etc/secret")
    assert options.given(options.encoders) == {"model": "owner/name", "secret_file": secret, "max_items": 9}
    assert options.given(options.languages) == {"model": "owner/other", "secret_file": secret}


def test_the_environment_counts_where_the_arguments_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_MODEL", "owner/other")
    monkeypatch.setenv("EPD_PLAIN_SEAM", "true")
    silent, told = FleetOptions(), FleetOptions(model="owner/name", plain_seam=False)
    settings = EncoderSettings(**silent.given(silent.encoders))
    assert (settings.model, settings.plain_seam) == ("owner/other", True)
    settings = EncoderSettings(**told.given(told.encoders))
    assert (settings.model, settings.plain_seam) == ("owner/name", False)


@pytest.mark.parametrize("part", ["encoders", "languages"])
def test_a_bad_value_of_a_setting_is_refused_before_anything_starts(part: str) -> None:
    with pytest.raises(ValidationError, match="drain_timeout"):
        fleet.app(FleetOptions.model_validate({part: {"settings": {"drain_timeout": -1}}}))


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"encoders": {"settings": {"max_itmes": 9}}}, "max_itmes: no settings of EncoderSettings"),
        ({"languages": {"settings": {"EPD_MAX_QUEUE": 9}}}, "EPD_MAX_QUEUE: no settings of LanguageSettings"),
        ({"encoders": {"min_replicas": 5, "max_replicas": 4}}, "less than min_replicas"),
        ({"encoders": {"min_replicas": 0}}, "greater than 0"),
        ({"encoders": {"look_back_s": 1, "metrics_interval_s": 2}}, "longer than metrics_interval_s"),
        ({"encoder": {}}, "Extra inputs"),
    ],
)
def test_what_is_wrong_is_said(args: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        FleetOptions.model_validate(args)


def test_a_replica_asks_ray_for_what_it_needs_and_nothing_else() -> None:
    needs = Needs(num_cpus=4, num_gpus=0.25, accelerator_type="L4", resources={"epd_encoder": 0.01}, env_vars={"A": "b"})
    assert needs.actor_options() == {
        "num_cpus": 4,
        "num_gpus": 0.25,
        "accelerator_type": "L4",
        "resources": {"epd_encoder": 0.01},
        "runtime_env": {"env_vars": {"A": "b"}},
    }
    assert Needs().actor_options() == {"num_cpus": 1, "num_gpus": 0, "resources": {}}


def test_without_ray_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("services.fleet.") and "options" not in name]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="epd-pair\\[fleet\\]"):
        fleet.app(FleetOptions())
