"""Brings the records of Locust's workers together at its master, and waits for the last of them."""

from __future__ import annotations

import time
from typing import Any

import gevent
from locust.env import Environment
from locust.rpc import Message
from locust.runners import STATE_MISSING, MasterRunner, Runner, WorkerRunner

from services.loadtest.ledger import Ledger

_EVERY = 1.0
"""Seconds between two messages of a worker."""
_POLL = 0.05
_RECORDS = "loadtest_records"
_STOP = "loadtest_stop"


def gather(environment: Environment, ledger: Ledger, waits: float) -> None:
    """Fills ``ledger`` in a process that makes load, and in the master from those of all workers.

    When ``test_stop`` fires, every request that was sent has its record there; listeners that need them are to be added later
    than this. ``waits`` are the seconds that a request may take.
    """
    runner = environment.runner
    assert runner is not None
    environment.events.test_start.add_listener(lambda **_: ledger.begin())
    if isinstance(runner, MasterRunner):
        _lead(environment, runner, ledger)
    else:
        _follow(environment, runner, ledger, waits)


def idle(runner: Runner, ledger: Ledger) -> bool:
    """Whether nothing is under way any more, and all records are there."""
    if isinstance(runner, MasterRunner):
        return ledger.idle([*runner.clients])  # also of those that are silent for a moment
    return not runner.user_count and not ledger.open


def _lead(environment: Environment, runner: MasterRunner, ledger: Ledger) -> None:
    def receive(msg: Message, **_: Any) -> None:
        ledger.receive(msg.node_id, msg.data)

    def stop(**_: Any) -> None:
        # Locust's own order to quit would not wait for what its workers have to say.
        workers = [name for name, node in runner.clients.items() if node.state != STATE_MISSING]
        if not ledger.idle(workers):
            runner.send_message(_STOP)
            _wait(lambda: ledger.idle(workers), environment.stop_timeout + 5 * _EVERY)

    runner.register_message(_RECORDS, receive)
    environment.events.test_stopping.add_listener(stop)


def _follow(environment: Environment, runner: Runner, ledger: Ledger, waits: float) -> None:
    def report() -> None:
        if isinstance(runner, WorkerRunner):
            for message in ledger.ship(runner.user_count):
                runner.send_message(_RECORDS, message)
        else:
            ledger.standing(runner.user_count)

    def report_on() -> None:
        while True:
            gevent.sleep(_EVERY)
            report()

    def finish(**_: Any) -> None:
        _wait(lambda: not ledger.open, waits)
        report()
        environment.stop_timeout = 0.0  # a worker of Locust's waits so long once more, and hears no order to quit meanwhile

    environment.events.test_stop.add_listener(finish)
    if isinstance(runner, WorkerRunner):
        runner.register_message(_STOP, lambda **_: runner.stop(), concurrent=True)
    runner.greenlet.spawn(report_on)


def _wait(condition: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        gevent.sleep(_POLL)
