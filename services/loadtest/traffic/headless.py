"""Runs a plan in this process alone, with Locust as a library: for benchmarks and tests, which need none of its options."""

from __future__ import annotations

from locust.env import Environment
from locust.event import Events

from services.loadtest.traffic.plan import Plan
from services.loadtest.traffic.shape import shape_class
from services.loadtest.traffic.users import client_class


def run(plan: Plan) -> Environment:
    """Returns when the load has ended, and all records are in the plan's ledger."""
    events = Events()
    environment = Environment(user_classes=[client_class(plan)], shape_class=shape_class(plan)(), events=events)
    runner = environment.create_local_runner()
    plan.install(environment)
    runner.start_shape()
    assert runner.shape_greenlet is not None
    runner.shape_greenlet.join()
    runner.quit()
    return environment
