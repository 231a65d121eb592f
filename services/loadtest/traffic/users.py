"""Locust's users: what makes requests come when the scenario wants them."""

from __future__ import annotations

from locust import User, task

from services.loadtest.traffic.arrivals import arrivals_per_user
from services.loadtest.traffic.plan import Plan


def client_class(plan: Plan) -> type[User]:
    """The class of users for a plan's traffic: its name is ``Client``.

    In a closed loop a user is one client. In an open one it is a share of all arrivals (see ``arrivals_per_user``): they come
    at random times, whatever becomes of those before, and all together are a Poisson process.
    """
    return _open_loop(plan) if plan.traffic.open_loop else _closed_loop(plan)


def _open_loop(plan: Plan) -> type[User]:
    rate = arrivals_per_user(plan.traffic)

    class Client(User):
        _due = 0.0

        def on_start(self) -> None:
            self._due = plan.clock.now()
            self.wait()  # type: ignore[no-untyped-call]

        def wait_time(self) -> float:
            # From the time when the one before was due, not from when it was sent: who is late does not send less.
            self._due += plan.rng.expovariate(rate)
            return max(0.0, self._due - plan.clock.now())

        @task
        def arrive(self) -> None:
            plan.arrive(self.environment, self._due)

    return Client


def _closed_loop(plan: Plan) -> type[User]:
    think = plan.traffic.think

    class Client(User):
        _due = 0.0

        def on_start(self) -> None:
            self.wait()  # type: ignore[no-untyped-call]

        def wait_time(self) -> float:
            pause = plan.rng.expovariate(1 / think) if think else 0.0
            self._due = plan.clock.now() + pause
            return pause

        @task
        def ask(self) -> None:
            plan.ask(self.environment, self._due)

    return Client
