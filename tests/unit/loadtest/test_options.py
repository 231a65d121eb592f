"""The command line: what it asks for, and what it says of what it cannot do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.loadtest.options import Options, options_of, parse, parser
from services.loadtest.scenario import shipped
from tests.processes import ROOT, free_port


def options(*arguments: str) -> Options:
    return options_of(parse(arguments))


def test_a_name_alone_tests_a_pair_of_its_own() -> None:
    asked = options("calm")
    assert (asked.scenario.name, asked.target, asked.docker) == ("calm", None, False)
    assert asked.report == Path("build/loadtest/calm")


def test_a_target_is_named_with_or_without_v1() -> None:
    for url in ("http://host:1", "http://host:1/", "http://host:1/v1"):
        assert options("calm", "--target", url).target == "http://host:1"


@pytest.mark.parametrize(("given", "key"), [("one", "one"), ("one, two", "one"), ("", None)])
def test_a_key_may_be_given_as_the_service_has_it(given: str, key: str | None) -> None:
    assert options("calm", "--api-key", given).api_key == key


def test_a_scenario_can_last_longer() -> None:
    assert options("soak", "--duration", "8h").scenario.lasts == 8 * 3600


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name a scenario"),
        (["clam"], "there is no scenario 'clam'"),
        (["calm", "--duration", "long"], "'long' is no duration"),
        (["calm", "--worker"], "a worker needs --target"),
        (["calm", "--worker", "--target", "http://a", "--processes", "2"], "only one of --worker"),
        (["calm", "--master", "--processes", "2"], "only one of --worker"),
        (["calm", "--processes", "-1"], "--processes and --expect-workers are numbers"),
        (["calm", "--docker", "--encoder", "http://a"], "finds the encoders by itself"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        options(*arguments)


def test_the_help_names_every_scenario() -> None:
    text = "".join(parser().format_help().split())  # its lines break at hyphens
    assert all(name in text for name in shipped())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.loadtest", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_scenarios_are_listed() -> None:
    done = run("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(shipped())


def test_a_server_that_is_not_there_is_told_and_nothing_is_judged(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = run("calm", "--target", url, "--report", str(tmp_path / "report"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"not run: {url}"), done.stderr
    assert not (tmp_path / "report" / "report.html").exists()
