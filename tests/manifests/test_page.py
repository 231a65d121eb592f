"""docs/kubernetes.md speaks of values, variables and files that there are."""

from __future__ import annotations

import re
from typing import Any

import yaml

from services.encoder.settings import EncoderSettings
from services.language.settings import LanguageSettings
from tests.declared import metrics
from tests.manifests.chart import CHART
from tests.processes import ROOT

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def paths(values: dict[str, Any], path: str = "") -> set[str]:
    """All values and groups of values, as the page writes them."""
    found = set()
    for name, value in values.items():
        found.add(f"{path}{name}")
        if isinstance(value, dict):
            found |= paths(value, f"{path}{name}.")
    return found


def test_values_are_those_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    there = paths(values)
    said = set(re.findall(r"--set ([\w.]+)=", PAGE))
    said |= {name for name in re.findall(r"`([a-zA-Z]+\.[a-zA-Z.]+)(?:=\w+)?`", PAGE) if name.split(".")[0] in values}
    assert len(said) > 20
    # Settings go by their variables' names.
    assert {name for name in said if ".EPD_" not in name} - there == set()


def test_defaults_are_those_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    encoder, language = values["encoder"], values["language"]
    for told in (
        f"| {encoder['maxSurge']}, {encoder['maxUnavailable']} |",
        f"| {encoder['replicas']}, {language['replicas']} |",
        f"| {encoder['drainSeconds']}, {language['drainSeconds']} |",
        f"`language.leaveSeconds` ({language['leaveSeconds']})",
        f"`startSeconds` ({encoder['startSeconds']})",
        f"`encoder.autoscaling.target`, {encoder['autoscaling']['target']} for each",
        f"`language.autoscaling.target`, {language['autoscaling']['target']} for each",
        f"| {language['sharedMemory']} |",
    ):
        assert told in PAGE, told


def test_variables_metrics_and_files_are_there() -> None:
    known = {f"EPD_{name.upper()}" for settings in (EncoderSettings, LanguageSettings) for name in settings.model_fields}
    assert set(re.findall(r"EPD_[A-Z_]+", PAGE)) <= known
    assert set(re.findall(r"`(epd_\w+)`", PAGE)) <= {metric.name for metric in metrics("shared", "services")}
    for file in re.findall(r"deploy/[\w./-]+\w", PAGE):
        assert (ROOT / file).exists(), file
    for file in re.findall(r"\]\(([\w-]+\.md)", PAGE):
        assert (ROOT / "docs" / file).exists(), file
