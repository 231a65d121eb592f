"""Ctrl-C and SIGTERM, under gevent."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import gevent

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGINT and SIGTERM raise KeyboardInterrupt in the greenlet that is here, at what it waits for.

    Python would raise it in whatever greenlet runs just then, such as one that undoes a fault, and nobody else would notice.
    """
    here = gevent.getcurrent()

    def interrupt() -> None:
        print("\nundoing what was done to the deployment; a second signal ends that, too", file=sys.stderr, flush=True)
        gevent.kill(here, KeyboardInterrupt)

    watchers = [gevent.signal_handler(number, interrupt) for number in _SIGNALS]
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.cancel()
        for number in _SIGNALS:
            signal.signal(number, signal.default_int_handler)
