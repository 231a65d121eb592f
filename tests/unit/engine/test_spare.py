"""What a pool may take of the machine's memory: never more than a container's limit leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.language.engine.spare import MOST_CPU_POOL, cpu_pool

MB = 2**20
VERSION_2 = "0::/pods/mine\n"
VERSION_1 = "5:cpu:/\n4:memory:/docker/1\n0::/\n"


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 64 GiB free."""
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 16 * MB, "SC_PAGE_SIZE": 4096}.__getitem__)


def root_of(folder: Path, groups: str, files: dict[str, str]) -> Path:
    """A root folder in which a process is in ``groups``; ``files`` are those under /sys/fs/cgroup."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        (VERSION_2, {"pods/mine/memory.max": f"{800 * MB}\n", "pods/mine/memory.current": f"{400 * MB}\n"}, 400 * MB),
        (VERSION_2, {"pods/mine/memory.max": "max\n", "pods/memory.max": f"{100 * MB}\n"}, 100 * MB),
        (VERSION_2, {"memory.max": f"{100 * MB}\n"}, 100 * MB),  # within a container, of which only the top is seen
        (VERSION_2, {"memory.max": f"{100 * MB}\n", "memory.current": f"{120 * MB}\n"}, 0),
        (
            VERSION_2,
            {
                "memory.max": f"{100 * MB}\n",
                "memory.current": f"{90 * MB}\n",
                "memory.stat": f"anon 1\ninactive_file {30 * MB}\n",
            },
            40 * MB,
        ),
        (
            VERSION_1,
            {
                "memory/docker/1/memory.limit_in_bytes": f"{80 * MB}\n",
                "memory/docker/1/memory.usage_in_bytes": f"{60 * MB}\n",
                "memory/docker/1/memory.stat": f"inactive_file 1\ntotal_inactive_file {20 * MB}\n",
            },
            40 * MB,
        ),
    ],
)
def test_a_control_groups_limit_counts(tmp_path: Path, groups: str, files: dict[str, str], left: int) -> None:
    assert cpu_pool(root_of(tmp_path, groups, files)) == left // 4


@pytest.mark.parametrize("files", [{}, {"pods/mine/memory.max": "max\n"}, {"memory.max": f"{2**62}\n"}])
def test_without_a_limit_the_machine_counts(tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu_pool(root_of(tmp_path, VERSION_2, files)) == MOST_CPU_POOL
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert cpu_pool(root_of(tmp_path, VERSION_2, files)) == 1000 * 1024


def test_a_machine_without_control_groups_will_do(tmp_path: Path) -> None:
    assert cpu_pool(tmp_path) == MOST_CPU_POOL
