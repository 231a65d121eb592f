"""Fixtures that several folders share: the demo model, and a running pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch

from tests.families import make
from tests.processes import DEMO_MODEL, Service


@pytest.fixture(scope="session", autouse=True)
def one_thread_each() -> None:
    """The services under test need the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    return DEMO_MODEL


@dataclass(frozen=True)
class Pair:
    """An encoder and a language service that use each other, and a client of the latter."""

    encoder: Service
    language: Service
    client: httpx.Client


@contextmanager
def demo_pair(folder: Path) -> Iterator[Pair]:
    """A pair with the demo model, whose logs are in ``folder``."""
    with (
        Service("encoder", folder, allow_private_urls=True).start(wait=False) as encoder,
        Service("language", folder, encoders=encoder.url).start(wait=False) as language,
        httpx.Client(base_url=language.url, timeout=60, trust_env=False) as client,
    ):
        language.wait_until_ready(encoders=1)
        yield Pair(encoder, language, client)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair for all tests that leave it as they found it."""
    with demo_pair(tmp_path_factory.mktemp("pair")) as made:
        yield made


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny checkpoints by the name of their family, each made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = make(name, tmp_path_factory.mktemp(name))
        return made[name]

    return of
