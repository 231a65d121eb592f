"""The generator: users, arrivals, and records of everything that was sent, on Locust."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.generator import ANSWERS, answer
from services.loadtest.scenario import Step, Traffic
from services.loadtest.traffic.arrivals import arrivals_per_user, users_at
from tests.processes import ROOT
from tests.unit.loadtest.scripted import Connection, Script, Server, forever

MIX = {"text": 1}


def traffic(**more: Any) -> Traffic:
    return Traffic.model_validate({"mix": MIX, **more})


@dataclass(frozen=True)
class Found:
    """What a generator printed."""

    records: list[dict[str, Any]]
    generator: dict[str, Any]
    counted: dict[str, list[int]]

    @property
    def most_at_once(self) -> int:
        changes = sorted([(record["sent"], 1) for record in self.records] + [(record["ended"], -1) for record in self.records])
        most = now = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        return most


def loaded(url: str, lasts: float, **asked: Any) -> Found:
    """Runs the traffic in one process."""
    return ran("loading", order(url, lasts, **asked))


def ran(module: str, text: str) -> Found:
    command = [sys.executable, "-m", f"tests.unit.loadtest.{module}", text]
    return found(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout)


def order(url: str, lasts: float, **asked: Any) -> str:
    usual = {"mix": MIX, "streaming": 0, "deadline": 5}
    return json.dumps({"url": url, "scenario": {"lasts": lasts, "traffic": {**usual, **asked}}})


def found(printed: str) -> Found:
    said = dict(line.split(" ", 1) for line in printed.splitlines() if line.startswith(("FOUND ", "COUNTED ")))
    return Found(**json.loads(said["FOUND"]), counted=json.loads(said.get("COUNTED", "{}")))


def slowly(seconds: float) -> Script:
    """A text, after a while."""

    def say(connection: Connection) -> None:
        time.sleep(seconds)  # this is what the test is about, and waits for nothing
        connection.sock.sendall(answer("text"))

    return forever(say)


@pytest.fixture
def quick() -> Iterator[Server]:
    with Server(forever(lambda it: it.sock.sendall(answer("text")))) as server:
        yield server


# ------------------------------------------------------------------------------------------------------ users and arrivals


@pytest.mark.parametrize("rate", [0.3, 1, 7.5, 30, 99, 100, 250, 1234.5])
def test_a_rate_is_a_whole_number_of_users(rate: float) -> None:
    asked = traffic(rate=rate)
    assert users_at(asked, 0) * arrivals_per_user(asked) == pytest.approx(rate)
    assert 1 <= users_at(asked, 0) <= 100


def test_a_user_is_one_arrival_a_second_where_that_will_do() -> None:
    assert arrivals_per_user(traffic(rate=30, steps=[Step(at=5, load=60), Step(at=9, load=0)])) == 1


@pytest.mark.parametrize("loads", [(10, 250, 40), (0.5, 3, 1.5), (5, 1000, 10), (33, 77, 21)])
def test_all_loads_of_a_scenario_are_near_whole_numbers_of_users(loads: tuple[float, ...]) -> None:
    steps = [Step(at=index + 1, load=load) for index, load in enumerate(loads[1:])]
    asked = traffic(rate=loads[0], steps=steps)
    for at, load in enumerate(loads):
        assert users_at(asked, at) * arrivals_per_user(asked) == pytest.approx(load, rel=0.01)


def test_a_ramp_has_small_steps() -> None:
    asked = traffic(rate=1, steps=[Step(at=100, load=5)], ramp=True)
    rates = [users_at(asked, at) * arrivals_per_user(asked) for at in range(101)]
    assert max(abs(after - before) for before, after in pairwise(rates)) < 0.11
    assert (rates[0], rates[-1]) == (pytest.approx(1), pytest.approx(5))


def test_no_load_is_no_user() -> None:
    assert users_at(traffic(rate=5, steps=[Step(at=1, load=0)]), 2) == 0
    assert users_at(traffic(users=5, steps=[Step(at=1, load=9)]), 2) == 9


# ------------------------------------------------------------------------------------------------------------- under Locust


def test_arrivals_come_whatever_becomes_of_those_before() -> None:
    with Server(slowly(1.0)) as server:
        loop = loaded(server.url, 2, rate=100, most_open=1000)
        assert len(server.requests) == len(loop.records)
    assert 140 < len(loop.records) < 260  # a Poisson process of 200: four standard deviations
    assert loop.most_at_once > 60
    gaps = sorted(record["due"] for record in loop.records)
    shorter = sum(after - before < 0.00693 for before, after in pairwise(gaps))
    assert 0.35 < shorter / len(gaps) < 0.65  # the median of such gaps
    assert loop.generator["late_p99"] < 0.25


def test_every_request_under_way_at_the_end_gets_its_record_and_is_in_locusts_statistics() -> None:
    with Server(slowly(1.2)) as server:
        loop = loaded(server.url, 1, users=5)
        assert len(server.requests) == len(loop.records) == 5
    assert {record["end"] for record in loop.records} == {"answered"}
    assert all(record["ended"] > 1 for record in loop.records)
    assert len({record["id"] for record in loop.records}) == 5
    wrong = sum(record["right"] is False for record in loop.records)
    assert loop.counted == {"text": [5, wrong]}


def test_a_closed_loop_has_no_more_requests_than_users(quick: Server) -> None:
    loop = loaded(quick.url, 1, users=3)
    assert loop.most_at_once <= 3
    assert len(loop.records) == len(quick.requests) > 30
    assert loop.generator["cpu"] > 0


def test_a_request_whose_user_is_killed_gets_its_record(quick: Server) -> None:
    killed = ran("killing", order(quick.url, 1, users=1))
    assert len(quick.requests) == len(killed.records) == 1
    assert killed.records[0]["end"] == "answered"


def test_users_think(quick: Server) -> None:
    loop = loaded(quick.url, 2, users=20, think=0.5)
    assert 40 < len(loop.records) < 130  # 80 on average


def test_steps_come_on_time(quick: Server) -> None:
    loop = loaded(quick.url, 3.5, rate=100, steps=[{"at": 1.5, "load": 0}, {"at": 2.5, "load": 100}])
    times = [record["sent"] for record in loop.records]
    assert not [at for at in times if 1.8 < at < 2.45 or at > 3.8]
    assert sum(1.1 < at < 1.5 for at in times) > 15
    assert sum(3.1 < at < 3.5 for at in times) > 15


def test_what_is_too_much_is_skipped_and_counted() -> None:
    release = threading.Event()

    def script(connection: Connection) -> None:
        connection.read()
        release.wait(3)
        connection.sock.sendall(answer("text"))

    with Server(script) as server:
        loop = loaded(server.url, 1, rate=60, most_open=4)
        release.set()
        assert len(server.requests) == len(loop.records) == 4
    assert loop.generator["skipped"] > 20


def test_the_benchmarks_answers_are_such() -> None:
    for name in ANSWERS:
        head, _, body = answer(name).partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}" in head.decode()
        assert ("error" in json.loads(body)) == (name == "503")
