"""How much memory of the machine a pool may take where nobody says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOST_CPU_POOL = 4 * 2**30
_SHARE = 4


def cpu_pool(root: Path = Path("/")) -> int:
    """Bytes: a quarter of what is free on the machine, or of what the process's control groups leave where that is less; 4 GiB
    at most. ``root`` is where /proc and /sys are found."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(MOST_CPU_POOL, min([free, *_left(root)]) // _SHARE)


def _left(root: Path) -> Iterator[int]:
    """What each control group with a limit leaves, this process's own and those around it (cgroups 2 and 1). In a container the
    own one may be at the top of what can be seen, whatever its name is outside."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            top, limit, usage, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif controllers == "memory":
            top, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        own = top / name.lstrip("/")
        for group in dict.fromkeys((own, *own.parents, top)):
            if group.is_relative_to(top) and (most := _number(group / limit)) is not None:
                used = (_number(group / usage) or 0) - _cached(group / "memory.stat", cache)
                yield max(0, most - max(0, used))


def _number(file: Path) -> int | None:
    """What the file says, where it is a number."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _cached(file: Path, name: str) -> int:
    """Bytes of files that are kept only while nobody needs the memory; they count as used."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
