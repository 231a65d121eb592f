"""The rendered probes against the real services: ready says who can be asked, and alive whom a restart would help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.chaos.test_engine_killed import engine_of
from tests.chats import user
from tests.integration.test_encoder_ends import Media, Receiver, calling, encode
from tests.manifests.chart import SETS, rendered
from tests.manifests.containers import Probe, container_of
from tests.processes import ROOT, START_TIMEOUT, Service, wait_for

KINDS = ("startup", "liveness", "readiness")
# The machine that tests run on may be a busy one; what the probes allow is looked at apart.
PATIENCE = 30.0


def probe(component: str, kind: str) -> Probe:
    return container_of(rendered("default"), component).probe(kind)


def status(service: Service, kind: str) -> int:
    """What a probe gets from a service, as the kubelet asks; 0 without an answer."""
    asked = probe(service.name, kind)
    try:
        return httpx.get(f"{service.url}{asked.path}", timeout=PATIENCE, trust_env=False).status_code
    except httpx.ConnectError:
        return 0


def verdicts(service: Service) -> dict[str, bool]:
    """Which probes succeed: those that get 200 to 399."""
    return {kind: 200 <= status(service, kind) < 400 for kind in KINDS}


UP = {"startup": True, "liveness": True, "readiness": True}
BUSY = {"startup": True, "liveness": True, "readiness": False}
DOWN = {"startup": False, "liveness": False, "readiness": False}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("component", ["encoder", "language"])
def test_probes_ask_the_services_port_and_leave_them_time(name: str, component: str) -> None:
    container = container_of(rendered(name), component)
    assert {each.port for each in container.probes.values()} == {container.ports["http"]}
    start, alive, ready = (container.probe(kind) for kind in KINDS)
    assert start.period * start.failures >= 600  # loading, and a download of the model before
    # A restart loses what is computed, and is for what stands still for long; measured under load: 50 ms (failure-contract.md).
    assert alive.period * alive.failures >= 60
    assert alive.timeout >= 5
    # Whoever is not ready is left out within seconds.
    assert ready.period * ready.failures + ready.timeout <= 10


@pytest.mark.parametrize("component", ["encoder", "language"])
def test_nothing_is_ready_before_the_model_is_loaded(component: str, tmp_path: Path) -> None:
    with Service(component, tmp_path, **({"encoders": ""} if component == "language" else {})).start(wait=False) as service:
        seen = verdicts(service)
        assert seen == DOWN  # the process has but begun
        wait_for(lambda: status(service, "startup") == 200, START_TIMEOUT, "the start")
        wait_for(lambda: status(service, "readiness") == 200, PATIENCE, "readiness")
        assert httpx.get(f"{service.url}/v1/info", timeout=PATIENCE, trust_env=False).json()["service"] == component
        assert verdicts(service) == UP


def test_an_encoder_that_drains_is_alive_and_not_ready(tmp_path: Path) -> None:
    with calling(tmp_path, drain_timeout=60) as (encoder, media, _, open_call):
        assert verdicts(encoder) == UP
        encoder.process.send_signal(signal.SIGTERM)
        wait_for(lambda: status(encoder, "readiness") == 503, PATIENCE, "draining")
        assert verdicts(encoder) == BUSY
        media.answer.set()
        assert open_call.result(timeout=PATIENCE).status_code == 200
        assert encoder.process.wait(timeout=60) == 0
        assert verdicts(encoder) == DOWN


class Hanging(Service):
    """An encoder whose tower hangs while ``file`` is there: the program of ``tests.manifests.hanging``."""

    def __init__(self, folder: Path, file: Path) -> None:
        super().__init__("encoder", folder, allow_private_urls=True, stall_timeout=0.5)
        self.file = file

    def start(self, wait: bool = True) -> Service:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "tests.manifests.hanging", str(self.file), "--port", str(self.port)]
            self._process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=log, stderr=subprocess.STDOUT)
        if wait:
            self.wait_until_ready()
        return self


def test_an_encoder_whose_tower_hangs_is_alive_and_not_ready(tmp_path: Path) -> None:
    media, receiver, file = Media(), Receiver(), tmp_path / "hang"
    media.answer.set()
    try:
        with Hanging(tmp_path, file) as encoder, ThreadPoolExecutor(1) as thread:
            assert verdicts(encoder) == UP
            file.touch()
            call = thread.submit(encode, encoder, media, receiver)
            wait_for(lambda: status(encoder, "readiness") == 503, PATIENCE, "the stall")
            assert verdicts(encoder) == BUSY
            file.unlink()
            assert call.result(timeout=PATIENCE).status_code == 200
            assert verdicts(encoder) == UP
    finally:
        media.close()
        receiver.context.destroy(linger=0)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests that leave it as they found it."""
    with Service("language", tmp_path_factory.mktemp("language"), encoders="").start() as service:
        yield service


def test_a_language_service_without_encoders_is_ready(language: Service) -> None:
    """Else all would leave the load balancer with the last encoder, and text with them."""
    assert verdicts(language) == UP


def test_a_language_service_whose_engine_restarts_is_alive_and_not_ready(language: Service) -> None:
    os.kill(engine_of(language), signal.SIGKILL)
    wait_for(lambda: status(language, "readiness") == 503, PATIENCE, "the end of the engine")
    assert status(language, "liveness") == 200
    wait_for(lambda: verdicts(language) == UP, START_TIMEOUT, "the engine's return")


def test_a_service_that_stands_still_is_not_alive(language: Service) -> None:
    """What liveness is for: nothing inside can help any more."""
    language.process.send_signal(signal.SIGSTOP)
    try:
        for kind in ("liveness", "readiness"):
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(f"{language.url}{probe('language', kind).path}", timeout=1.0, trust_env=False)
    finally:
        language.process.send_signal(signal.SIGCONT)
    wait_for(lambda: verdicts(language) == UP, PATIENCE, "its return")


def test_a_language_service_that_drains_is_alive_and_not_ready(tmp_path: Path) -> None:
    long = user("Hello!", stream=True, max_tokens=2000, ignore_eos=True)
    with Service("language", tmp_path, encoders="", drain_timeout=300).start() as language:
        url = f"{language.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=long, timeout=PATIENCE, trust_env=False) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            language.process.send_signal(signal.SIGTERM)
            wait_for(lambda: status(language, "readiness") == 503, PATIENCE, "draining")
            assert status(language, "liveness") == 200
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert language.process.wait(timeout=60) == 0
        assert verdicts(language) == DOWN
