"""The load tester against services that break one promise each: the verdict for that promise fails, and no other does.

A request that is forgotten breaks several: it has no answer, and is no success either. And one service keeps all promises, so
that the tool is known not to cry wolf.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import ROOT


@dataclass(frozen=True)
class Trial:
    """A service that is broken in one way, what is done to its encoders, and what must show it."""

    broken_by: str
    timeline: str
    fails: set[str]
    lasts: int = 14
    language: str = "{}"
    verdicts: str = ""


TRIALS = {
    "right": Trial("", '"6s pause encoder-* for 3s"', set(), lasts=16, verdicts='first_503 = "2.5s"'),
    "answers about pictures without any encoder": Trial(
        "silent", '"6s kill encoder-*", "9s start encoder-*"', {"no_silent_answer"}, lasts=10
    ),
    "forgets requests": Trial("dropped", "", {"answered", "calm", "texts_go_on"}, lasts=8),
    "mixes pictures up": Trial("mixed", "", {"right"}, lasts=8),
    "is slow to notice a hang": Trial(
        "",
        '"5s pause encoder-* for 7s"',
        {"failed_fast"},
        lasts=18,
        language="{ liveness_timeout = 5.0 }",
        verdicts='first_503 = "2.5s"\nrecovered = "10s"',
    ),
    "does not say when to come back": Trial("terse", '"5s pause encoder-* for 4s"', {"honest_failures"}, lasts=14),
    "lets texts wait for encoders": Trial("waiting", '"7s pause encoder-* for 7s"', {"texts_unnoticed"}, lasts=18),
}
"""In what the trials judge, texts are left out where the figures would be about a machine that starts a process beside them."""


def scenario(trial: Trial, folder: Path) -> str:
    path = folder / "trial.toml"
    module = "tests.broken" if trial.broken_by else "services.language"
    texts = "" if "texts_unnoticed" in trial.fails else 'text_p99_ratio = "off"\n'
    path.write_text(
        f'title = "A trial"\nlasts = "{trial.lasts}s"\ntimeline = [{trial.timeline}]\n'
        f'[pair]\nlanguage_module = "{module}"\nlanguage = {trial.language}\n'
        f'[traffic]\nrate = 20\ndeadline = "6s"\nmix = {{ text = 4, image = 6 }}\n'
        f"[verdicts]\n{texts}{trial.verdicts}\n"
    )
    return str(path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", TRIALS)
def test_a_service_that(name: str, tmp_path: Path) -> None:
    trial = TRIALS[name]
    done = subprocess.run(
        [sys.executable, "-m", "services.loadtest", scenario(trial, tmp_path), "--report", str(tmp_path / "report")],
        cwd=ROOT,
        env={**os.environ, "BROKEN_BY": trial.broken_by},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == (1 if trial.fails else 0), done.stdout
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    failed = {verdict["name"] for verdict in report["verdicts"] if not verdict["holds"]}
    assert failed == trial.fails, done.stdout
