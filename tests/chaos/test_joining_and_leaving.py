"""Encoders register, join, drain and leave, and services start and restart in any order: the fleet converges each time."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.fleet import Fleet, fleet
from tests.chats import user
from tests.load import Case, ask_all, check, codes
from tests.processes import UNCACHED, Service, free_port, wait_for

SEQUENCES = 20


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("a secret of this deployment, long enough")
    return path


@pytest.fixture
def host(tmp_path: Path, secret: Path) -> Iterator[Fleet]:
    """A language service that knows no encoder and waits for some to register."""
    with fleet(tmp_path, encoders=0, language={"secret_file": secret, "data_host": "0.0.0.0"}) as services:
        yield services


def encoder_for(services: Fleet, folder: Path, **settings: Any) -> Service:
    return Service("encoder", folder, threads=1, announce_to=services.language.url, **UNCACHED, **settings)


def test_an_encoder_registers_and_says_goodbye(host: Fleet, tmp_path: Path, secret: Path, singles: list[Case]) -> None:
    # Both listen on every address; neither is told to send to 0.0.0.0.
    with encoder_for(host, tmp_path, secret_file=secret, host="0.0.0.0") as encoder:
        host.until_ready(1)
        [view] = host.states().values()
        assert (view["url"], view["source"], view["state"]) == (f"http://127.0.0.1:{encoder.port}", "registered", "ready")
        assert view["silence"] < 1
        check(asyncio.run(ask_all(host.language.url, singles[:10])), 10, set())
        assert encoder.stop() == 0
        wait_for(lambda: not host.states(), 2, "goodbye")
    [refused] = asyncio.run(ask_all(host.language.url, singles[:1]))
    assert refused.code == "encoder_unavailable"


def test_one_without_the_secret_is_refused_with_the_reason(host: Fleet, tmp_path: Path) -> None:
    with encoder_for(host, tmp_path) as encoder:
        wait_for(lambda: "different secrets" in encoder.log.read_text(), 10, "the reason in the encoder's log")
        assert host.states() == {}


def test_one_of_another_model_is_refused_with_the_reason(host: Fleet, tmp_path: Path, secret: Path) -> None:
    from tests.families import make

    other = make("qwen3_vl", tmp_path / "other")
    with encoder_for(host, tmp_path, secret_file=secret, model=other) as encoder:
        wait_for(lambda: "has fingerprint" in encoder.log.read_text(), 10, "the reason in the encoder's log")
        assert host.states() == {}


def test_registration_is_closed_without_a_secret(tmp_path: Path) -> None:
    with fleet(tmp_path, encoders=0) as services, encoder_for(services, tmp_path) as encoder:
        wait_for(lambda: "Registration is closed" in encoder.log.read_text(), 10, "the reason in the encoder's log")
        assert services.states() == {}


def test_encoders_join_and_leave_under_load(host: Fleet, tmp_path: Path, secret: Path, singles: list[Case]) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(encoder_for(host, tmp_path, secret_file=secret))
        host.until_ready(1)
        wanted = list(islice(cycle(singles), 3000))
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(lambda: asyncio.run(ask_all(host.language.url, wanted, 16)))
            second = stack.enter_context(encoder_for(host, tmp_path, secret_file=secret))
            host.until_ready(2)
            assert first.stop() == 0
            host.until_ready(1)
            assert not asked.done()
            outcomes = asked.result(timeout=120)
        # One that drains finishes what it has and sends the rest elsewhere: nobody notices.
        check(outcomes, 3000, set())
        assert codes(outcomes)["ok"] == 3000
        assert [view["url"] for view in host.states().values()] == [second.url]


def test_a_language_service_drains(tmp_path: Path) -> None:
    with fleet(tmp_path, language={"drain_timeout": 8}) as services:
        url = f"{services.language.url}/v1/chat/completions"
        long = user("Hello!", stream=True, max_tokens=600, ignore_eos=True)
        with httpx.stream("POST", url, json=long, timeout=30, trust_env=False) as response:
            lines = response.iter_lines()
            assert next(lines)
            services.language.process.send_signal(signal.SIGTERM)
            wait_for(lambda: httpx.get(f"{services.language.url}/ready", trust_env=False).status_code == 503, 2, "draining")
            refused = httpx.post(url, json=user("Hello!"), timeout=10, trust_env=False)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_overloaded")
            assert refused.headers["retry-after"]
            assert list(lines)[-2] == "data: [DONE]"
        assert services.language.process.wait(8) == 0


def test_what_a_drain_has_no_time_for_is_told(tmp_path: Path) -> None:
    def service() -> Service:
        return Service("language", tmp_path, encoders="", drain_timeout=2).start(wait=False)

    with service() as whole, service() as streamed:
        for language, stream in ((whole, False), (streamed, True)):
            language.wait_until_ready()
            check_an_unfinished_drain(language, stream)


def check_an_unfinished_drain(language: Service, stream: bool) -> None:
    endless = user("Hello!", stream=stream, max_tokens=2000, ignore_eos=True)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(httpx.post, f"{language.url}/v1/chat/completions", json=endless, timeout=30, trust_env=False)
        running = f"{language.url}/metrics"
        wait_for(lambda: "epd_engine_running 1.0" in httpx.get(running, trust_env=False).text, 10, "generation")
        language.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        response = asked.result(timeout=10)
        if stream:
            assert '"code":"engine_overloaded"' in response.text.replace(" ", "")
        else:
            assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_overloaded")
        assert time.monotonic() - began < 4
        assert language.process.wait(20) == 0


@pytest.mark.parametrize("name", ["encoder", "language"])
def test_a_signal_while_loading_ends_at_once(tmp_path: Path, name: str) -> None:
    with Service(name, tmp_path).start(wait=False) as service:
        wait_for(lambda: "Waiting for application startup" in service.log.read_text(), 30, "the beginning of loading")
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(1) == 0


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with fleet(tmp_path, encoders=0) as services:
        url = f"{services.language.url}/v1/chat/completions"
        endless = user("Hello!", stream=True, max_tokens=2000, ignore_eos=True)
        with httpx.stream("POST", url, json=endless, timeout=30, trust_env=False) as response:
            lines = response.iter_lines()  # held, since the response closes with it
            assert next(lines)
            services.language.process.send_signal(signal.SIGTERM)
            wait_for(lambda: httpx.get(f"{services.language.url}/ready", trust_env=False).status_code == 503, 2, "draining")
            services.language.process.send_signal(signal.SIGTERM)
            assert services.language.process.wait(1) == 128 + signal.SIGTERM


@pytest.mark.timeout(600)
def test_any_order_of_starts_and_restarts_converges(tmp_path: Path, singles: list[Case]) -> None:
    """Random sequences over both services: whatever was killed, stopped or started when, in the end pictures are answered."""
    rng = random.Random(4)
    ports = free_port(), free_port()
    encoder = Service("encoder", tmp_path, ports[0], threads=1, health_interval=0.2)
    language = Service("language", tmp_path, ports[1], threads=1, encoders=encoder.url, health_interval=0.2)
    services = [encoder, language]

    def alive(service: Service) -> bool:
        return service._process is not None and service.process.poll() is None

    try:
        for number in range(SEQUENCES):
            for service in rng.choices(services, k=rng.randint(2, 4)):
                if alive(service):
                    service.process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
                    service.process.wait(20)
                else:
                    service.start(wait=False)
                    time.sleep(rng.choice([0.0, 0.2, 1.0]))  # it is to be hit in the middle of things
            for service in rng.sample(services, 2):
                if not alive(service):
                    service.start(wait=False)
            language.wait_until_ready(encoders=1)

            def served(case: Case = singles[number]) -> bool:
                # What was ready a moment ago may have been killed since.
                [outcome] = asyncio.run(ask_all(language.url, [case]))
                check([outcome], 1, {"encoder_failed", "encoder_unavailable", "encoder_lost"})
                return outcome.status == 200

            wait_for(served, 30, f"an answer after sequence {number}")
    finally:
        for service in services:
            if alive(service):
                service.stop()
