"""Questions about pictures whose right answers are known, for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chats import Undivided
from tests.load import Case, cases, pairs


@pytest.fixture(scope="session")
def undivided(demo_model: Path) -> Undivided:
    return Undivided(demo_model)


@pytest.fixture(scope="session")
def singles(undivided: Undivided) -> list[Case]:
    """Questions about one picture; no two have the same answer."""
    return cases(undivided)


@pytest.fixture(scope="session")
def doubles(undivided: Undivided) -> list[Case]:
    """Questions about one of two pictures; no two have the same answer."""
    return pairs(undivided)
