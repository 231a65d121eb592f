"""Locust as a library: what it has to know of a plan, and the load from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable

import gevent
from locust.env import Environment
from locust.event import Events
from locust.runners import Runner

from services.loadtest.traffic.plan import Plan
from services.loadtest.traffic.shape import shape_class
from services.loadtest.traffic.users import client_class

_TICK = 0.5


def environment_of(plan: Plan) -> Environment:
    """An environment of Locust's for a plan, without a runner; when it has one, the plan is to be installed."""
    return Environment(user_classes=[client_class(plan)], shape_class=shape_class(plan)(), events=Events())


def make_load(runner: Runner, tick: Callable[[], None]) -> None:
    """Makes the whole load, and returns when all records are in the plan's ledger. ``tick`` is called about twice a second.

    Raises:
        RuntimeError: Locust could not go on.
    """
    runner.start_shape()
    shaping = runner.shape_greenlet
    assert shaping is not None
    while not shaping.ready():
        gevent.wait([shaping], timeout=_TICK)
        tick()
    if shaping.exception is not None:
        raise RuntimeError(f"Locust could not go on: {shaping.exception!r}") from shaping.exception
    runner.quit()


def make_load_alone(plan: Plan) -> Environment:
    """The same in this process alone: for benchmarks and tests, which need none of the tool's options."""
    environment = environment_of(plan)
    runner = environment.create_local_runner()
    plan.install(environment)
    make_load(runner, lambda: None)
    return environment
