"""Replicas and whole nodes die under load: the load tester's verdicts hold, and Serve brings others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.cluster import Node
from tests.fleet.deployed import PATIENCE, Deployed
from tests.load import Case, ask_all, check, codes
from tests.processes import ROOT, wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(900)]

SCENARIO = """
title = "A fleet whose parts die"
lasts = "{lasts}s"
timeline = [{timeline}]
[traffic]
rate = 8
deadline = "20s"
mix = {{ text = 3, image = 3, images = 1, repeated = 1, broken = 0.2 }}
[verdicts]
must_see = ["ok"{codes}]
first_503 = "5s"
text_p99_ratio = "off"
recovered = "off"
late_p99 = "2s"
"""
"""What comes back does so after the load, where the machine is slow: the load tester waits for that, and the tests ask then."""


def loadtest(fleet: Deployed, folder: Path, timeline: str, lasts: int, codes: str) -> dict[str, Any]:
    """The load tester's report of a scenario against the fleet, which passed. Its verdicts are printed (``pytest -rP``)."""
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(lasts=lasts, timeline=timeline, codes=codes))
    command = [sys.executable, "-m", "services.loadtest", str(path), "--quiet", "--report", str(folder / "report")]
    done = subprocess.run(
        [*command, "--target", fleet.url, "--ray", fleet.cluster.address, "--secret-file", str(fleet.secret)],
        cwd=ROOT,
        env=fleet.cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout)
    assert done.returncode == 0
    report: dict[str, Any] = json.loads((folder / "report" / "report.json").read_text())
    return report


def still_right(fleet: Deployed, wanted: list[Case]) -> None:
    """New pictures are answered."""
    outcomes = asyncio.run(ask_all(fleet.url, wanted[:8], 2))
    check(outcomes, 8, set())
    assert codes(outcomes)["ok"] == 8


def test_encoder_replicas_are_killed_under_load(fleet: Deployed, tmp_path: Path, singles: list[Case]) -> None:
    before = {replica.name for replica in fleet.encoders().values()}
    report = loadtest(fleet, tmp_path, '"6s kill encoder-* for 2s"', 12, ', "encoder_unavailable | encoder_failed"')
    assert [fault["error"] for fault in report["run"]["faults"]] == [""]
    # The tester waits until all are back, so these are others, and the language service has them.
    after = {replica.name for replica in fleet.encoders().values()}
    assert len(after) == 2
    assert after.isdisjoint(before)
    still_right(fleet, singles)


def test_a_node_is_killed_under_load_and_another_one_joins(fleet: Deployed, tmp_path: Path, singles: list[Case]) -> None:
    """Everything on it dies at once: both encoders, and what Ray has there. Texts go on, pictures are refused meanwhile."""
    [node] = {replica.node for replica in fleet.encoders().values()}
    name, lost = list(fleet.cluster.nodes.items())[-1]
    joined: list[Node] = []

    def replace() -> None:
        wait_for(lost.gone, 2 * PATIENCE, "the death of the node")
        joined.append(fleet.cluster.add(f"{name}-again", 4, encoders=4))

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        report = loadtest(fleet, tmp_path, '"6s kill encoder-* by=node for 2s"', 12, ', "encoder_unavailable | encoder_failed"')
    finally:
        replacing.join()
    assert [fault["error"] for fault in report["run"]["faults"]] == [""]
    fleet.until_ready(2)
    assert {replica.node for replica in fleet.encoders().values()}.isdisjoint({node})
    still_right(fleet, singles)
