"""What the Docker engine does to encoders, under load: the load tester in its own container, against the composed pair."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.composed import BUILD_TIMEOUT, UP_TIMEOUT, ComposedPair, inspect, run, running
from tests.processes import ROOT

LOAD_TIMEOUT = 240
MAX_IMAGE_BYTES = 1_000_000_000
SCENARIO = "outage"

pytestmark = [pytest.mark.containers, pytest.mark.timeout(BUILD_TIMEOUT + UP_TIMEOUT + LOAD_TIMEOUT + 120)]


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposedPair]:
    """Two encoders and a language service. The load tester writes its reports to a temporary folder."""
    pair = ComposedPair(
        encoders=2, faults_enabled=True, reports=tmp_path_factory.mktemp("reports"), scenarios=ROOT / "tests" / "containers"
    )
    with running(pair, request):
        pair.compose("build", "loadtest", timeout=BUILD_TIMEOUT)
        yield pair


@pytest.fixture(scope="module")
def outage(pair: ComposedPair) -> dict[str, Any]:
    """The report of a load test that passed: the command fails otherwise."""
    told = pair.compose("run", "--rm", "loadtest", f"/scenarios/{SCENARIO}.toml", timeout=LOAD_TIMEOUT)
    print(told)
    report: dict[str, Any] = json.loads((Path(pair.settings["EPD_REPORTS"]) / SCENARIO / "report.json").read_text())
    return report


def test_every_promise_holds_while_containers_are_killed_paused_cut_off_and_restarted(outage: dict[str, Any]) -> None:
    assert {verdict["name"]: verdict["detail"] for verdict in outage["verdicts"] if not verdict["holds"]} == {}
    assert outage["passed"]
    judged = {verdict["name"] for verdict in outage["verdicts"]}
    assert judged >= {"answered", "right", "no_silent_answer", "honest_failures", "texts_go_on", "failed_fast", "recovered"}


def test_the_faults_were_real(outage: dict[str, Any]) -> None:
    faults = outage["run"]["faults"]
    assert [(fault["action"], fault["error"]) for fault in faults] == [
        ("kill", ""),
        ("pause", ""),
        ("disconnect", ""),
        ("restart", ""),
    ]
    assert all(fault["applied"] < fault["cleared"] for fault in faults)
    ends = Counter(record.get("code") for record in outage["records"])
    assert ends["encoder_lost"] + ends["encoder_unavailable"] > 10
    assert ends["ok"] > 500


def test_nothing_of_the_load_test_stays(pair: ComposedPair, outage: dict[str, Any]) -> None:
    pair.wait_until_healthy()
    assert pair.compose("ps", "--all", "--quiet", "loadtest") == ""
    assert run("docker", "ps", "--all", "--quiet", "--filter", "ancestor=epd-loadtest") == ""


def test_the_image_is_small_and_has_no_torch(pair: ComposedPair) -> None:
    assert int(inspect("epd-loadtest", ".Size")) <= MAX_IMAGE_BYTES
    found = "import importlib.util; print(importlib.util.find_spec('torch'))"
    assert run("docker", "run", "--rm", "--entrypoint", "python", "epd-loadtest", "-c", found) == "None"
