"""What this machine must have for a load test is found out before the load."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.loadtest.preparation import allow_connections, make_room
from services.loadtest.scenario import Traffic
from tests.unit.loadtest.runs import scenario


def traffic(**more: Any) -> Traffic:
    return Traffic.model_validate({"mix": {"text": 1}, **more})


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """This process's limits of open files, as far as the tool sees and sets them."""
    found = {"open": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: found["open"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: found.update(open=limits))
    return found


@pytest.mark.parametrize(
    ("asked", "soft"),
    [
        (traffic(rate=1, most_open=3000), 3200),
        (traffic(users=5, steps=[{"at": 1, "load": 2000}]), 2200),
        (traffic(rate=1, most_open=100), 1024),
    ],
)
def test_as_many_files_may_be_open_as_requests_at_once(limits: dict[str, tuple[int, int]], asked: Traffic, soft: int) -> None:
    allow_connections(asked)
    assert limits["open"] == (soft, 4096)


@pytest.mark.parametrize(("asked", "told"), [(traffic(rate=1, most_open=5000), "most_open"), (traffic(users=5000), "users")])
def test_that_the_system_allows_too_few_is_told(limits: dict[str, tuple[int, int]], asked: Traffic, told: str) -> None:
    with pytest.raises(ValueError, match=f"5000 requests may be open at once, .* only 4096 .* or lower {told}"):
        allow_connections(asked)


def test_the_reports_folder_is_made(tmp_path: Path) -> None:
    make_room(tmp_path / "some" / "where", scenario())
    assert list((tmp_path / "some" / "where").iterdir()) == []


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot be written to .*/file/report \(Not a directory\)"):
        make_room(tmp_path / "file" / "report", scenario())


def test_a_disk_without_room_for_so_many_records_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 10**8, 10**8))  # type: ignore[attr-defined]
    make_room(tmp_path, scenario(lasts=3600))
    with pytest.raises(ValueError, match="may take 247 MB, and 100 MB are free"):
        make_room(tmp_path, scenario(lasts=8 * 3600))
