"""The load tester as its users have it: one command, from the start of a pair to the exit status and the report."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import psutil
import pytest
from junitparser import JUnitXml

from benchmarks.generator import answer
from tests.processes import ROOT, free_port, wait_for
from tests.unit.loadtest.scripted import Server, forever

LIES = """
title = "An encoder that lies for a while"
lasts = "7s"
timeline = ["3s corrupt for 2s"]
[traffic]
rate = 12
mix = { text = 1, image = 3 }
[verdicts]
must_see = ["embedding_corrupt", "ok"]
fault_success = "off"
text_p99_ratio = "off" # too few texts, on a machine that other tests share
recovered = "8s"
late_p99 = "2s"
"""

PAUSED = """
title = "An encoder that is paused, and stays so"
lasts = "60s"
timeline = ["100ms pause encoder-1"]
[traffic]
rate = 5
mix = { text = 1 }
"""

TEXTS = """
title = "Texts"
lasts = "{lasts}"
[traffic]
rate = 60
streaming = 0
mix = {{ text = 1 }}
[verdicts]
late_p99 = "2s"
"""


def command(folder: Path, scenario: str, *arguments: str) -> list[str]:
    path = folder / "short.toml"
    path.write_text(scenario)
    return [sys.executable, "-m", "services.loadtest", str(path), "--report", str(folder / "report"), *arguments]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def saved(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report" / "report.json").read_text())
    return found


@contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A load tester that runs, and what it writes on standard error."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield process, process.stderr
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ended_by(signal_number: signal.Signals, process: subprocess.Popen[str]) -> int:
    """The exit status; nothing that the process had started is there any more."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal_number)
    status = process.wait(60)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    return status


@pytest.fixture
def quick() -> Iterator[Server]:
    with Server(forever(lambda it: it.sock.sendall(answer("text")))) as server:
        yield server


def against(server: Server, *arguments: str) -> list[str]:
    return ["--target", server.url, "--model", "demo_model", "--no-semantics", *arguments]


def asked(server: Server) -> list[str]:
    """Ids of the requests that a server has seen since the load began."""
    ids = [request.lower().partition(b"x-request-id: ")[2].split(b"\r\n")[0].decode() for request in server.requests]
    return [each for each in ids if each and not each.startswith("lt-rehearsal")]


def test_a_whole_run_with_a_pair_of_its_own_is_judged_and_can_be_judged_again(tmp_path: Path) -> None:
    done = run(command(tmp_path, LIES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed: short; report: " in done.stdout
    found = saved(tmp_path)
    assert found["passed"]
    assert found["run"]["faults"][0]["line"] == "corrupt for 2s"
    assert "embedding_corrupt" in {record["code"] for record in found["records"]}
    (suite,) = JUnitXml.fromfile(str(tmp_path / "report" / "junit.xml"))
    assert (suite.failures, suite.errors, suite.tests) == (0, 0, len(found["verdicts"]))
    page = (tmp_path / "report" / "report.html").read_text()
    assert "An encoder that lies for a while" in page

    (tmp_path / "report" / "report.html").unlink()
    again = run([sys.executable, "-m", "services.loadtest", "--judge", str(tmp_path / "report" / "report.json")])
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert saved(tmp_path) == found
    assert (tmp_path / "report" / "report.html").exists()


def test_several_processes_record_each_request_that_the_server_saw(tmp_path: Path, quick: Server) -> None:
    done = run(command(tmp_path, TEXTS.format(lasts="3s"), *against(quick, "--processes", "2", "--csv")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "interrupted" not in done.stderr
    found = saved(tmp_path)
    ids = [record["id"] for record in found["records"]]
    assert sorted(ids) == sorted(asked(quick))
    assert len(ids) > 80
    assert len({each.split("-")[1] for each in ids}) == found["run"]["generator"]["processes"] == 2
    assert {record["end"] for record in found["records"]} == {"answered"}
    assert found["run"]["generator"]["cpu"] > 0
    statistics = (tmp_path / "report" / "locust_stats.csv").read_text().splitlines()
    assert statistics[-1].startswith(f",Aggregated,{len(ids)},0,")
    assert (tmp_path / "report" / "locust.html").exists()


def test_sigterm_ends_workers(tmp_path: Path, quick: Server) -> None:
    with started(command(tmp_path, TEXTS.format(lasts="60s"), *against(quick, "--processes", "2"))) as (process, _):
        wait_for(lambda: len(asked(quick)) > 20, 60, "load")
        assert ended_by(signal.SIGTERM, process) == 130
    assert not (tmp_path / "report" / "report.html").exists()


def test_ctrl_c_ends_a_pair_whose_encoder_is_paused(tmp_path: Path) -> None:
    with started(command(tmp_path, PAUSED)) as (process, errors):
        assert any("s  pause encoder-1 " in line for line in errors)
        assert ended_by(signal.SIGINT, process) == 130
        assert errors.read().endswith("interrupted: nothing is judged\n")


def test_a_worker_that_dies_ends_the_test_unjudged(tmp_path: Path, quick: Server) -> None:
    with started(command(tmp_path, TEXTS.format(lasts="60s"), *against(quick, "--processes", "2"))) as (process, errors):
        wait_for(lambda: len(asked(quick)) > 20, 60, "load")
        psutil.Process(process.pid).children()[0].kill()
        assert process.wait(60) == 2
        assert "not run: a worker of this machine ended with status -9" in errors.read()


def test_locusts_page_shows_and_takes_no_orders(tmp_path: Path, quick: Server) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    arguments = against(quick, "--web", "--web-port", url.rpartition(":")[2])
    with started(command(tmp_path, TEXTS.format(lasts="60s"), *arguments)) as (process, _):
        wait_for(lambda: len(asked(quick)) > 20, 60, "load")
        with httpx.Client(base_url=url, trust_env=False) as http:
            assert "<title>Locust" in http.get("/").text
            assert http.get("/stats/requests").json()["state"] == "running"
            assert http.post("/stop").status_code == 403
            assert http.post("/swarm", data={"user_count": 1, "spawn_rate": 1}).status_code == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130


@pytest.mark.parametrize("option", ["--master-port", "--web-port"])
def test_a_port_that_is_taken_is_told_before_the_load(tmp_path: Path, quick: Server, option: str) -> None:
    how = {"--master-port": "--master", "--web-port": "--web"}[option]
    taken = quick.url.rpartition(":")[2]
    done = run(command(tmp_path, TEXTS.format(lasts="2s"), *against(quick, how, option, taken)))
    assert done.returncode == 2
    assert done.stderr.startswith("not run: "), done.stderr
    assert option in done.stderr
    assert not asked(quick)
