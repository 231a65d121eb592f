"""The command: runs a load test, or judges one again, and says what came of it."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from services.loadtest.conduct import be_worker, conduct
from services.loadtest.interruption import interruptible
from services.loadtest.options import Options, options_of, parse
from services.loadtest.preparation import allow_connections, make_room
from services.loadtest.rehearsal import CannotRun
from services.loadtest.report import read, write
from services.loadtest.run import Run
from services.loadtest.scenario import load, shipped
from services.loadtest.verdicts import judge, passed

PASSED, FAILED, NOT_RUN, INTERRUPTED = 0, 1, 2, 130


def command(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    asked = parse(arguments)
    # Locust tells about its users, which is not what a reader of this wants to know.
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    if asked.list:
        for name in shipped():
            print(f"{name:20}{load(name).title}")
        return PASSED
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        if asked.judge is not None:
            return judged(read(asked.judge), asked.judge.parent, sys.stdout)
        return tested(options_of(asked), sys.stdout)
    except (CannotRun, ValueError, OSError) as error:
        print(f"not run: {error}", file=sys.stderr)
        return NOT_RUN
    except KeyboardInterrupt:
        print("interrupted: nothing is judged", file=sys.stderr)
        return INTERRUPTED


def tested(options: Options, out: TextIO) -> int:
    """Runs a load test and judges it; a worker only makes load."""
    allow_connections(options.scenario.traffic)
    if options.worker:
        be_worker(options)
        return PASSED
    make_room(options.report, options.scenario)
    with interruptible():
        run = conduct(options)
    return judged(run, options.report, out)


def judged(run: Run, folder: Path, out: TextIO) -> int:
    """Judges a run, writes its report, and prints the verdicts."""
    verdicts = judge(run)
    page = write(run, verdicts, folder)
    for verdict in verdicts:
        print(f"{'holds' if verdict.holds else 'FAILS':6} {verdict.name:18} {verdict.measured}", file=out)
    good = passed(verdicts)
    print(f"{'passed' if good else 'FAILED'}: {run.scenario.name}; report: {page}", file=out, flush=True)
    return PASSED if good else FAILED
