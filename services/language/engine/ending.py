"""Ends an engine's process and whatever it has started."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path

_SWEEP = 0.05
"""Seconds between looks at what a process left behind."""


async def terminate(process: Process, patience: float) -> None:
    """Ends a process for sure, and all of its group: closes its standard input, which it obeys, and kills what does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        process.kill()
        await process.wait()
    # What it started and left behind is asked first: it may have memory to give back that outlives processes.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        for _ in range(round(patience / _SWEEP)):
            if not await asyncio.to_thread(_lives, process.pid):
                return
            await asyncio.sleep(_SWEEP)
        os.killpg(process.pid, signal.SIGKILL)


def _lives(group: int) -> bool:
    """Whether a process of the group runs. Those that have ended and that nobody asks about stay in it, so the system's answer
    counts only where it does not tell more."""
    os.killpg(group, 0)
    states = [_state(path) for path in Path("/proc").glob("[0-9]*/stat")]
    return not states or any(of == group and state != "Z" for state, of in states)


def _state(path: Path) -> tuple[str, int]:
    """A process's state and its group."""
    try:
        state, _, group, *_ = path.read_text().rpartition(")")[2].split()
    except OSError:  # gone meanwhile
        return "Z", 0
    return state, int(group)
