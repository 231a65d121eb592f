"""What a service and its child processes use, read from ``/proc``."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """``pid`` and all its descendants that run now."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            fields = _stat(int(folder.name))
            if fields:
                children[int(fields[1])].append(int(folder.name))
    found = [pid]
    for member in found:
        found.extend(children[member])
    return found


def rss(pid: int) -> int:
    """Resident bytes of the whole family."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(fields[21]) * page for fields in map(_stat, family(pid)) if fields)


def cpu(pid: int) -> float:
    """Seconds of CPU that the family used so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    return sum((int(fields[11]) + int(fields[12])) / ticks for fields in map(_stat, family(pid)) if fields)


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/pid/stat`` from the state on; empty for a process that is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
