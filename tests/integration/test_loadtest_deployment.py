"""A load tester's own pair of real processes: what is done to it has the effect that it should have, and ends."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from PIL import Image

from examples.scenes import png, random_scene
from services.loadtest.deployment import CannotDo, Choice, open_deployment
from services.loadtest.deployment.local import LocalPair
from services.loadtest.run import Fault
from services.loadtest.scenario import Action, Scenario
from services.loadtest.timeline import Timeline
from tests.chats import encoded, user
from tests.processes import ROOT, wait_for


def scenario(*timeline: str, encoders: int = 1, **pair: object) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "test",
            "title": "A test",
            "lasts": "600s",
            "traffic": {"rate": 1, "mix": {"text": 1}},
            "timeline": timeline,
            "pair": {"encoders": encoders, **pair},
        }
    )


@contextmanager
def opened(asked: Scenario, logs: Path) -> Iterator[LocalPair]:
    with open_deployment(asked, Choice(logs=logs)) as deployment:
        assert isinstance(deployment, LocalPair)
        deployment.check(asked.actions())
        yield deployment


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPair]:
    """A pair with two encoders; each test leaves it as it found it."""
    with opened(scenario(encoders=2), tmp_path_factory.mktemp("logs")) as deployment:
        yield deployment


_seeds = iter(range(10_000))


def asked(deployment: LocalPair, picture: bytes | None = None) -> str:
    """The code of the answer about a picture, or without one about a new one."""
    seed = next(_seeds)
    picture = picture or png(random_scene(random.Random(seed)), size=64, seed=seed)
    body = user(picture, "Describe the picture.", max_tokens=2)
    answer = httpx.post(f"{deployment.url}/v1/chat/completions", json=body, timeout=30, trust_env=False)
    return "ok" if answer.status_code == 200 else str(answer.json()["error"]["code"])


def until_answered(deployment: LocalPair, within: float) -> None:
    wait_for(lambda: asked(deployment) == "ok", within, "an answer about a new picture")


def played(deployment: LocalPair, *lines: str) -> list[Fault]:
    """The faults of a timeline, when all is undone."""
    began = time.monotonic()
    actions = [Action.parse(line) for line in lines]
    deployment.check(actions)
    timeline = Timeline(actions, deployment, lambda: time.monotonic() - began)
    timeline.run(threading.Event())
    timeline.finish()
    return timeline.faults


def nice_of(pid: int) -> int:
    """Of the process's session as a whole; 0 where the system does not share out by sessions."""
    group = Path(f"/proc/{pid}/autogroup")
    return int(group.read_text().split()[-1]) if group.exists() else 0


def listener(address: str) -> int:
    """The process that listens at an address of this machine."""
    port = address.rpartition(":")[2]
    found = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    return int(found.partition("pid=")[2].partition(",")[0])


def test_encoders_are_killed_and_stopped_and_come_back(pair: LocalPair) -> None:
    faults: list[Fault] = []
    thread = threading.Thread(
        target=lambda: faults.extend(played(pair, "0s kill encoder-1", "0s stop encoder-2", "1.5s start"))
    )
    thread.start()
    try:
        wait_for(lambda: not any(pair.healthy(each) for each in pair.encoders), 10, "the encoders' end")
        assert asked(pair) in ("encoder_failed", "encoder_unavailable")
    finally:
        thread.join(60)
    assert [fault.error for fault in faults] == ["", ""]
    assert [fault.disabling for fault in faults] == [True, True]
    for fault in faults:
        assert fault.applied is not None
        assert fault.lifting is not None
        assert fault.cleared is not None
        assert fault.applied < fault.lifting < fault.cleared
    assert all(pair.healthy(each) for each in pair.encoders)
    until_answered(pair, 4)
    # Those that came up during the run had to let others compute first, until they were up.
    assert [nice_of(listener(pair.address(each))) for each in pair.encoders] == [0, 0]


def test_paused_encoders_are_lost_and_go_on(pair: LocalPair) -> None:
    for each in pair.encoders:
        pair.carry_out("pause", each, {})
    assert not any(pair.healthy(each) for each in pair.encoders)
    assert asked(pair) in ("encoder_lost", "encoder_unavailable")
    for each in pair.encoders:
        pair.carry_out("resume", each, {})
    assert all(pair.healthy(each) for each in pair.encoders)
    until_answered(pair, 4)


def test_faults_of_the_route_are_set_and_removed(pair: LocalPair) -> None:
    handles = [(each, pair.carry_out("corrupt", each, {"p": "1", "frame": "1"})) for each in pair.encoders]
    assert asked(pair) == "embedding_corrupt"
    for each, handle in handles:
        pair.end("corrupt", each, handle)
        pair.end("corrupt", each, handle)  # that it is gone is as good
    until_answered(pair, 4)
    for each in pair.encoders:
        pair.carry_out("drop", each, {})
        pair.carry_out("clear", each, {})
    assert asked(pair) == "ok"


def test_what_a_fault_crashed_is_started_again(pair: LocalPair) -> None:
    began = time.monotonic()
    timeline = Timeline([Action.parse("0s crash encoder-1")], pair, lambda: time.monotonic() - began)
    timeline.run(threading.Event())
    wait_for(lambda: timeline.faults[0].applied is not None, 10, "the fault")
    wait_for(lambda: asked(pair) and not pair.healthy("encoder-1"), 10, "the crash")
    timeline.finish()
    assert timeline.faults[0].error == ""
    assert pair.healthy("encoder-1")
    until_answered(pair, 4)


@pytest.mark.parametrize(
    ("line", "said"),
    [("1s corupt", "does not match any of the expected tags"), ("1s corrupt p=2", "less than or equal to 1")],
)
def test_faults_that_encoders_do_not_know_are_refused_with_what_they_say(pair: LocalPair, line: str, said: str) -> None:
    with pytest.raises(CannotDo, match=said):
        pair.check([Action.parse(line)])


def test_trying_out_a_fault_hits_nobody(pair: LocalPair) -> None:
    pair.check([Action.parse("1s crash"), Action.parse("""2s error 'match={"headers": {"x-request-id": "*"}}'""")])
    for each in pair.encoders:
        assert httpx.get(f"{pair.address(each)}/v1/faults", trust_env=False).json() == {"faults": []}


def test_a_setting_that_there_is_not_is_refused_with_the_services_own_words(tmp_path: Path) -> None:
    with pytest.raises(CannotDo, match="--embeding-timeout"), opened(scenario(language={"embeding_timeout": 1}), tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_a_network_fails_and_is_as_before(tmp_path: Path) -> None:
    before = cables()
    with opened(scenario("1s disconnect for 5s", "8s slow bandwidth=8mbit"), tmp_path) as deployment:
        assert len(cables()) == len(before) + 1
        assert asked(deployment) == "ok"
        began = time.monotonic()
        deployment.carry_out("disconnect", "encoder-1", {})
        assert asked(deployment) == "encoder_lost"  # it is silent, not refused
        assert time.monotonic() - began < 2.5
        assert not deployment.healthy("encoder-1")
        deployment.carry_out("connect", "encoder-1", {})
        assert deployment.healthy("encoder-1")
        until_answered(deployment, 4)
        assert time_of(deployment) < 0.8
        deployment.carry_out("slow", "encoder-1", {"bandwidth": "8mbit", "loss": "0.1%"})
        assert time_of(deployment) > 0.95  # a megabyte at a megabyte a second
        deployment.carry_out("restore", "encoder-1", {})
        assert time_of(deployment) < 0.8
        (fault,) = played(deployment, "0s corrupt for 50ms")  # the route's token is known
        assert fault.error == ""
    assert cables() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_no_namespace_stays_behind_when_the_load_tester_is_killed() -> None:
    before = cables()
    program = """
import time
from services.loadtest.deployment.namespaces import Namespaces

with Namespaces(["encoder-1", "encoder-2"]):
    print("there", flush=True)
    time.sleep(600)
"""
    tester = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert tester.stdout is not None
    assert tester.stdout.readline() == "there\n"
    assert len(cables() - before) == 2
    tester.kill()
    tester.wait()
    tester.stdout.close()
    wait_for(lambda: cables() == before, 10, "the end of the namespaces")


def test_nothing_stays_behind_when_the_load_tester_is_killed(tmp_path: Path) -> None:
    program = f"""
import threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from services.loadtest.deployment.process import Process

spawner = ThreadPoolExecutor(1)
process = Process("sleeper", ["sleep", "600"], {{"PATH": "/usr/bin:/bin"}}, Path("/"), Path({str(tmp_path)!r}) / "log", spawner)
thread = threading.Thread(target=process.start)  # which is over soon, and the process is not
thread.start()
thread.join()
time.sleep(0.2)
print(process._child.pid, process.running, flush=True)
time.sleep(600)
"""
    tester = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert tester.stdout is not None
    pid, running = tester.stdout.readline().split()
    assert running == "True"
    tester.kill()
    tester.wait()
    tester.stdout.close()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "zombie" in state(pid), 10, "the child's end")


def test_it_works_under_gevent_as_locust_has_it(tmp_path: Path) -> None:
    timeline = scenario("0s pause encoder-1 for 3s", "0s pause language for 300ms")
    program = f"""
import gevent.monkey
gevent.monkey.patch_all()
import threading, time
from pathlib import Path
import gevent
from services.loadtest.deployment import Choice, open_deployment
from services.loadtest.observe import Observer
from services.loadtest.scenario import Scenario
from services.loadtest.timeline import Timeline

asked = Scenario.model_validate({timeline.model_dump(mode="json")!r})
waited = 0.0
def beat():
    global waited
    while True:
        began = time.perf_counter()
        gevent.sleep(0.01)
        waited = max(waited, time.perf_counter() - began)

with open_deployment(asked, Choice(logs=Path({str(tmp_path)!r}))) as deployment:
    gevent.spawn(beat)
    deployment.check(asked.actions())
    began = time.monotonic()
    clock = lambda: time.monotonic() - began
    observer = Observer(deployment, clock, every=0.1)
    observer.start()
    timeline = Timeline(asked.actions(), deployment, clock)
    thread = threading.Thread(target=timeline.run, args=(threading.Event(),))
    thread.start()
    thread.join()
    timeline.finish()
    observer.stop()
    assert [fault.error for fault in timeline.faults] == ["", ""], timeline.faults
    assert all(fault.cleared for fault in timeline.faults)
    assert {{sample.encoders_ready for sample in observer.samples}} >= {{0.0, 1.0}}
    leftovers = observer.leftovers()
    assert leftovers and not any(each.value for each in leftovers), leftovers
    assert waited < 0.5, waited
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n", done.stderr


def state(pid: str) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def cables() -> set[str]:
    """This machine's ends of the links to namespaces: they go when those do."""
    listed = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=True).stdout
    return {link["ifname"] for link in json.loads(listed) if link["ifname"].startswith("epd")}


def time_of(deployment: LocalPair) -> float:
    """Seconds that a new picture of a megabyte takes."""
    picture = encoded(Image.frombytes("RGB", (600, 600), random.randbytes(600 * 600 * 3)))
    began = time.monotonic()
    assert asked(deployment, picture) == "ok"
    return time.monotonic() - began
