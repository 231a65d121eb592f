"""A share of one core for a process, by a control group of the kernel's (version 1 or 2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PERIOD = 10_000  # microseconds; a process that has used its share up waits for the next one
_AHEAD = 100  # times as much as another process has a right to, so that it gets its share on a busy machine, too
_LEAST = 1_000  # microseconds that the kernel wants a share of a period to be


class NoQuota(RuntimeError):
    """Processes cannot be limited here; the message says why."""


@contextmanager
def limited(pid: int, share: float, core: int) -> Iterator[None]:
    """Inside it, a process with all its threads and those that it starts gets ``share`` of the time of ``core``, and no more.

    It is bound to that core until it ends: on several, the kernel leaves what it gave to one of them there for up to a
    millisecond of work, and threads on the others wait for the next period, each time that one hands over to another.

    Raises:
        NoQuota: the kernel's control groups cannot be written: it takes root, and in containers a privileged one.
    """
    parent, second = _controller()
    group = parent / f"epd-benchmark-{os.getpid()}-{pid}"
    quota = max(_LEAST, round(share * _PERIOD))
    period = round(quota / share)
    try:
        if second:
            (parent / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        try:
            if second:
                (group / "cpu.max").write_text(f"{quota} {period}")
                (group / "cpu.weight").write_text(str(100 * _AHEAD))
            else:
                (group / "cpu.cfs_period_us").write_text(str(period))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
                (group / "cpu.shares").write_text(str(1024 * _AHEAD))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.rmdir()
            raise
    except OSError as error:
        raise NoQuota(
            f"{group} cannot be set up: {error}; limiting processes takes root and writable control groups"
        ) from error
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread.name), {core})
        yield
    finally:
        for each in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                (parent / "cgroup.procs").write_text(each)
        group.rmdir()


def _controller() -> tuple[Path, bool]:
    """Where control groups of processor time are mounted, and whether they are version 2."""
    mounts = Path("/proc/mounts")
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(where), False
        if kind == "cgroup2" and "cpu" in (Path(where) / "cgroup.controllers").read_text().split():
            return Path(where), True
    raise NoQuota("this system has no control groups of processor time")
