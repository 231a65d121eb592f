"""Kills a user of a closed loop within its request, and prints what the ledger has: a process of its own, as loading.py is."""

from __future__ import annotations

import sys

import gevent
import locust  # noqa: F401

from services.loadtest.traffic.loop import environment_of
from tests.unit.loadtest.loading import planned, show

if __name__ == "__main__":
    plan = planned(sys.argv[1])
    environment = environment_of(plan)
    environment.create_local_runner()
    plan.install(environment)
    plan.ledger.begin()
    user = gevent.spawn(plan.ask, environment, 0.0)
    gevent.sleep(0)
    user.kill()
    with gevent.Timeout(10):
        while plan.ledger.open:
            gevent.sleep(0.01)
    show(plan)
