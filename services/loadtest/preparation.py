"""What this machine must have for a load test: found out before the load, not by what it then seems to do to the server."""

from __future__ import annotations

import resource
import shutil
import tempfile
from pathlib import Path

from services.loadtest.scenario import Scenario, Traffic

_OTHERS = 200
"""Files and connections that a generator process has open besides its requests."""
_REPORT_BYTES = 16 << 20
"""A page with its plots, and Locust's own."""
_RECORD_BYTES = 800
"""Bytes of a report for a request."""


def allow_connections(traffic: Traffic) -> None:
    """Lets this process, and those that it starts, open as many connections as there may be requests at once.

    Raises:
        ValueError: the system does not allow it; the message says what to change.
    """
    requests = traffic.most_open if traffic.open_loop else round(_highest(traffic))
    needed = requests + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{requests} requests may be open at once, and a process may open only {hard} files here: raise that limit "
            f"(ulimit -Hn), or lower {'most_open' if traffic.open_loop else 'users'} in the scenario"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def make_room(folder: Path, scenario: Scenario) -> None:
    """Makes a report's folder.

    Raises:
        ValueError: the report cannot be written there; the message says why.
    """
    size = _REPORT_BYTES + round(_RECORD_BYTES * _highest(scenario.traffic) * scenario.lasts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ValueError(
            f"the report cannot be written to {folder} ({error.strerror}): --report names another folder"
        ) from error
    if free < size:
        raise ValueError(
            f"the report may take {size / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free in {folder}: --report names another"
        )


def _highest(traffic: Traffic) -> float:
    return max(traffic.load_at(at) for at in (0.0, *(step.at for step in traffic.steps)))
