"""An encoder dies by ``kill -9``: pictures get a clean 503 at once, text goes on, and service is back when the encoder is."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.scenes import TALK, png, random_scene
from tests.chats import encoded, user
from tests.fake_encoder import FakeEncoder, after, honest
from tests.processes import UNCACHED, Service, free_port, wait_for

GONE = {"encoder_failed", "encoder_unavailable"}


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    port = free_port()
    with (
        Service("encoder", tmp_path, port, **UNCACHED).start(wait=False) as encoder,
        Service("language", tmp_path, encoders=encoder.url, **UNCACHED).start(wait=False) as language,
    ):
        language.wait_until_ready(encoders=1)
        yield encoder, language


def ask(language: Service, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{language.url}/v1/chat/completions", json=body, timeout=30, trust_env=False)


def picture() -> dict[str, Any]:
    return user(png(random_scene(random.Random(1))), "Describe the picture.")


def test_kill_and_return(services: tuple[Service, Service]) -> None:
    encoder, language = services
    assert ask(language, picture()).status_code == 200
    encoder.kill()
    for stream in (False, True, False):
        began = time.monotonic()
        response = ask(language, picture() | {"stream": stream})
        assert time.monotonic() - began < 1
        assert (response.status_code, response.json()["error"]["code"] in GONE) == (503, True)
        assert response.headers["retry-after"]
        text = ask(language, user("Hello!"))
        assert (text.status_code, text.json()["choices"][0]["message"]["content"]) == (200, TALK["Hello!"])
    encoder.start(wait=False)
    language.wait_until_ready(encoders=1)
    assert ask(language, picture()).status_code == 200


def test_kill_under_load_answers_everyone(services: tuple[Service, Service]) -> None:
    encoder, language = services
    from PIL import Image

    large = encoded(Image.effect_noise((1600, 1200), 60).convert("RGB"), "JPEG")
    bodies = [user(large, large, f"Describe the picture. {number}", max_tokens=4) for number in range(40)]
    with ThreadPoolExecutor(40) as threads:
        asked = [threads.submit(ask, language, body) for body in bodies]
        wait_for(lambda: any(future.done() for future in asked), 30, "a first answer")
        encoder.kill()
        died = time.monotonic()
        answers = [future.result(timeout=30) for future in asked]
        assert time.monotonic() - died < 5
    codes = [answer.json()["error"]["code"] if answer.status_code == 503 else answer.status_code for answer in answers]
    assert set(codes) <= {200, *GONE}
    assert codes.count(200) < 40


def test_a_broken_lease_is_noticed_at_once(tmp_path: Path) -> None:
    """The encoder accepted, and dies before it publishes: the open response breaks, nobody waits for the deadline."""
    with (
        FakeEncoder(after(20, honest)) as fake,
        Service("language", tmp_path, encoders=fake.url, embedding_timeout=15).start() as language,
        ThreadPoolExecutor(1) as threads,
    ):
        language.wait_until_ready(encoders=1)
        asked = threads.submit(ask, language, picture())
        wait_for(lambda: fake.calls == 1, 10, "the call")
        fake.drop_connections()
        began = time.monotonic()
        response = asked.result(timeout=15)
        assert time.monotonic() - began < 0.5
        assert (response.status_code, response.json()["error"]["code"]) == (503, "encoder_failed")


def test_a_client_that_hangs_up_frees_what_it_held(services: tuple[Service, Service]) -> None:
    _, language = services

    def gauge(name: str) -> float:
        lines = httpx.get(f"{language.url}/metrics", trust_env=False).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} "))

    long = user("Hello!", stream=True, max_tokens=2000, ignore_eos=True)
    with httpx.stream("POST", f"{language.url}/v1/chat/completions", json=long, timeout=30, trust_env=False) as response:
        assert response.status_code == 200
        lines = response.iter_lines()  # held, since the response closes with it
        assert next(lines)
        assert gauge("epd_engine_running") == 1
    wait_for(lambda: gauge("epd_engine_running") == 0, 1, "release of the engine's place")
    assert gauge("epd_engine_blocks_used") == 0
    whole = user("Hello!", max_tokens=2000, ignore_eos=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{language.url}/v1/chat/completions", json=whole, timeout=0.3, trust_env=False)
    wait_for(lambda: gauge("epd_engine_running") == 0, 1, "release of the engine's place")
    wait_for(lambda: "client gone" in language.log.read_text(), 5, "the line of the log")
