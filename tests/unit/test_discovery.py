"""Language services are found by names too; where that fails, those found last count for a while, and it is said once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from services.encoder.discovery import Named, Remembered, check_target, languages_of
from services.encoder.settings import EncoderSettings


class Names:
    """A name service."""

    def __init__(self) -> None:
        self.known: dict[str, Sequence[str]] = {}

    def getaddrinfo(self, host: str, port: int, **_: object) -> list[Any]:
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.known[host]]


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, **_: Any) -> None:
        self.lines.append(text)

    warning = info


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    service = Names()
    monkeypatch.setattr("services.encoder.discovery.socket.getaddrinfo", service.getaddrinfo)
    return service


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr("services.encoder.discovery._log", log)
    return log


async def test_a_name_stands_for_all_its_addresses_in_order_and_once(names: Names) -> None:
    names.known["language"] = ["10.0.0.2", "10.0.0.1", "fd00::7", "10.0.0.2"]
    assert await Named("http://language:8000").urls() == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://[fd00::7]:8000",
    ]


async def test_a_real_name_is_resolved() -> None:
    assert "http://127.0.0.1:80" in await Named("http://localhost").urls()


async def test_names_and_base_urls_stand_beside_each_other(names: Names, log: Log) -> None:
    names.known["language"] = ["10.0.0.1", "10.0.0.2"]
    settings = EncoderSettings(announce_to="http://10.0.0.2:8000/, dns+http://language:8000/,dns+http://nobody:1")
    languages = languages_of(settings.announce_targets())
    assert await languages.urls() == ("http://10.0.0.2:8000", "http://10.0.0.1:8000")
    names.known = {"language": ["10.0.0.9"], "nobody": ["10.0.0.3"]}
    assert await languages.urls() == ("http://10.0.0.2:8000", "http://10.0.0.9:8000", "http://10.0.0.3:1")


async def test_what_was_found_counts_for_a_while_after_looking_fails_which_is_said_once(names: Names, log: Log) -> None:
    now = [100.0]
    names.known["language"] = ["10.0.0.1"]
    languages = Remembered(Named("http://language:8000"), "language", kept=60.0, clock=lambda: now[0])
    assert await languages.urls() == ["http://10.0.0.1:8000"]
    del names.known["language"]
    for now[0] in (101.0, 159.0):
        assert await languages.urls() == ["http://10.0.0.1:8000"]
    now[0] = 160.0
    assert await languages.urls() == ()
    names.known["language"] = ["10.0.0.1"]
    for _ in range(2):
        assert await languages.urls() == ["http://10.0.0.1:8000"]
    assert log.lines == ["language services found", "language services not found", "language services found"]


async def test_a_slow_name_server_holds_up_nobody_for_long_and_has_one_question_at_a_time(
    names: Names, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.known["language"] = ["10.0.0.1"]
    answers, asked = threading.Event(), list[str]()

    def slowly(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        answers.wait(30)
        return names.getaddrinfo(host, port)

    monkeypatch.setattr("services.encoder.discovery.socket.getaddrinfo", slowly)
    monkeypatch.setattr("services.encoder.discovery._PATIENCE", 0.05)
    languages = languages_of(["http://10.0.0.2:8000", "dns+http://language:8000"])
    try:
        for _ in range(3):
            assert await languages.urls() == ("http://10.0.0.2:8000",)
        assert asked == ["language"]
    finally:
        answers.set()
    monkeypatch.setattr("services.encoder.discovery._PATIENCE", 30.0)
    assert await languages.urls() == ("http://10.0.0.2:8000", "http://10.0.0.1:8000")
    assert asked == ["language"]
    await languages.urls()
    assert asked == ["language", "language"]


@pytest.mark.parametrize("target", ["dns+http://language:8000", "http://language:8000", "https://language"])
def test_what_can_be_announced_to(target: str) -> None:
    assert check_target(f" {target}/ ") == target


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("dns+https://language", "certificates"),
        ("dns+language:8000", "not a base URL"),
        ("dns+http://0.0.0.0:8000", "listen on"),
        ("srv+http://language:8000", "not a base URL"),
    ],
)
def test_what_is_neither_a_base_url_nor_a_name_is_refused_at_start(target: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        EncoderSettings(announce_to=target)
