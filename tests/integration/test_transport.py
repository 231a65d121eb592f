"""The pair answers the same by every transport, says which one it uses, and leaves no memory behind."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.scenes import png, random_scene
from tests.chaos.test_shared_memory import shared_bytes
from tests.chats import Undivided, user
from tests.families import make
from tests.processes import Service, wait_for

PROMPT, TOKENS = "Describe the picture.", 12
LARGE = 448  # pixels a side: 784 tokens, about 600 kB of embeddings


@contextmanager
def a_pair(
    folder: Path, encoder: dict[str, object], language: dict[str, object], cache: int = 0
) -> Iterator[tuple[Service, Service]]:
    model = folder / "model"
    with ExitStack() as stack:
        first = stack.enter_context(Service("encoder", folder, model=model, embedding_cache_bytes=0, **encoder))
        other = Service("language", folder, model=model, encoders=first.url, embedding_cache_bytes=cache, **language)
        stack.enter_context(other)
        other.wait_until_ready(encoders=1)
        yield first, other


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a checkpoint whose pictures are large enough to be worth sharing memory for."""
    model = make("qwen3_vl", tmp_path / "model")
    path = model / "preprocessor_config.json"
    config = json.loads(path.read_text())
    config["size"]["longest_edge"] = LARGE**2
    path.write_text(json.dumps(config))
    return tmp_path


def pictures(count: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [png(random_scene(rng), size=LARGE, seed=number) for number in range(count)]


def ask(language: Service, picture: bytes) -> dict[str, Any]:
    body = user(picture, PROMPT, model="model", return_token_ids=True, max_tokens=TOKENS)
    answer = httpx.post(f"{language.url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def sent(encoder: Service) -> dict[str, float]:
    """Messages by transport."""
    lines = httpx.get(f"{encoder.url}/metrics", trust_env=False).text.splitlines()
    prefix = 'epd_encoder_messages_total{transport="'
    return {line.removeprefix(prefix).split('"')[0]: float(line.split()[-1]) for line in lines if line.startswith(prefix)}


def gauge(service: Service, name: str) -> float:
    lines = httpx.get(f"{service.url}/metrics", trust_env=False).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def shown(language: Service) -> str:
    [encoder] = httpx.get(f"{language.url}/v1/encoders", trust_env=False).json()["data"]
    return str(encoder["transport"])


@pytest.mark.parametrize(
    ("encoder", "language", "transport", "warned"),
    [
        ({}, {}, "shm", ""),
        ({"mm_feature_transport": "cpu"}, {}, "cpu", ""),
        ({}, {"mm_feature_transport": "cpu"}, "cpu", "the language service takes frames only"),
        ({"mm_feature_transport": "cuda_ipc", "device": "cpu"}, {}, "shm", "no GPU memory to share"),
    ],
)
def test_answers_are_the_undivided_models_by_every_transport(
    encoder: dict[str, object], language: dict[str, object], transport: str, warned: str, folder: Path
) -> None:
    undivided = Undivided(folder / "model")
    with a_pair(folder, encoder, language) as (one, other):
        assert shown(other) == transport
        for picture in pictures(3):
            prompt, answer = undivided.answer([picture, PROMPT], TOKENS)
            told = ask(other, picture)
            assert (told["prompt_token_ids"], told["choices"][0]["token_ids"]) == (prompt, answer)
        assert sent(one) == {transport: 3.0}
        log = one.log.read_text()
        assert log.count("best transport cannot be used") == bool(warned)
        assert warned in log


def test_many_pictures_at_once_through_little_memory_are_all_right(folder: Path) -> None:
    undivided = Undivided(folder / "model")
    asked = pictures(40, seed=7)
    expected = [undivided.answer([picture, PROMPT], TOKENS)[1] for picture in asked]
    # Memory for three messages at a time, of which the language service's cache keeps some.
    with a_pair(folder, {"max_shared_bytes": 2**21}, {}, cache=2**21) as (encoder, language):
        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(lambda picture: ask(language, picture)["choices"][0]["token_ids"], asked))
        assert answers == expected
        assert sent(encoder) == {"shm": 40.0}
        assert gauge(encoder, "epd_encoder_shared_bytes") <= 2**21


def test_memory_comes_back_when_the_language_service_lets_go_and_when_either_is_killed(folder: Path) -> None:
    asked = pictures(24, seed=9)
    with a_pair(folder, {}, {}) as (encoder, language):
        for picture in asked:
            ask(language, picture)
        wait_for(lambda: gauge(encoder, "epd_encoder_loans") == 0, 10, "return of all memory")
        # One after another they all fit into the same memory.
        assert gauge(encoder, "epd_encoder_shared_bytes") <= 4 * 2**20
    before = shared_bytes()
    with a_pair(folder, {}, {}, cache=2**28) as (encoder, language):
        for picture in asked:
            ask(language, picture)
        assert gauge(encoder, "epd_encoder_loans") == 24  # the cache of the language service is this memory
        assert shared_bytes() - before > 24 * 500_000
        encoder.kill()
        assert ask(language, asked[0])["choices"]  # what it has open it keeps
        language.kill()
        wait_for(lambda: shared_bytes() - before < 2**20, 10, "return of all memory")


def test_an_encoder_gives_up_what_it_lent_to_a_language_service_that_was_killed(folder: Path) -> None:
    with a_pair(folder, {}, {"liveness_timeout": 0.5, "health_interval": 0.1}, cache=2**28) as (encoder, language):
        for picture in pictures(8):
            ask(language, picture)
        assert gauge(encoder, "epd_encoder_loans") == 8
        language.kill()
        wait_for(lambda: gauge(encoder, "epd_encoder_loans") == 0, 20, "the end of the lease")
        assert gauge(encoder, "epd_encoder_shared_bytes") == 0
