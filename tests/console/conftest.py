"""A pair whose encoder can be made to fail, and a browser that looks at its console."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.console.browser import Browser, started
from tests.console.page import Page
from tests.processes import Service

EXPECTED = re.compile(
    r"/(completions|faults|kinds) - Failed to load resource: the server responded with a status of (400|503) "
)
"""What the browser itself writes of answers that tests provoke."""


@dataclass(frozen=True)
class Watched:
    """The services whose console is looked at."""

    encoder: Service
    language: Service


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("console")
    with (
        Service("encoder", folder, faults_enabled=True).start(wait=False) as encoder,
        Service("language", folder, encoders=encoder.url, faults_enabled=True).start(wait=False) as language,
    ):
        language.wait_until_ready(encoders=1)
        yield Watched(encoder, language)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, watched: Watched, tmp_path: Path) -> Iterator[Page]:
    """The console, just opened. When the test ends it must have asked nobody else, and have had nothing to complain of."""
    browser.resize(1180, 820)
    browser.requests(), browser.complaints()
    page = Page(browser, watched.language.url, tmp_path)
    page.open()
    yield page
    own = (page.url, "data:", f"blob:{page.url}")
    assert [address for address in browser.requests() if not address.startswith(own)] == []
    assert [complaint for complaint in browser.complaints() if not EXPECTED.search(complaint)] == []
