"""A fleet that tests share which leave it as they found it, and questions whose right answers are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chats import Undivided
from tests.fleet.deployed import UNCACHED, Deployed, deployed
from tests.load import Case, cases


@pytest.fixture(scope="session")
def singles(demo_model: Path) -> list[Case]:
    """Questions about one picture; no two have the same answer."""
    return cases(Undivided(demo_model), 24)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory, singles: list[Case]) -> Iterator[Deployed]:
    """The one fleet of all tests: each cluster takes a while to come up."""
    with deployed(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def fleet(running: Deployed) -> Deployed:
    """As it always is: two encoders on one node, a language service on the other; no caches: each picture is computed."""
    encoders = {"min_replicas": 2, "max_replicas": 2, "settings": {"faults_enabled": True, **UNCACHED}}
    running.deploy(encoders, {"settings": UNCACHED})
    running.until_updated(encoders=2, languages=1)
    return running
