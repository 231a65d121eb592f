"""Locust's load shape: how many users there are when."""

from __future__ import annotations

import gevent
from locust import LoadTestShape

from services.loadtest.traffic.arrivals import users_at
from services.loadtest.traffic.gathering import idle
from services.loadtest.traffic.plan import Plan

_TICK = 1.0
"""Seconds from one question of Locust to the next."""
_POLL = 0.05
_LAST_REPORTS = 5.0
"""Seconds that workers have at the end, past the time that requests may take."""
_AT_ONCE = 100.0
"""Users a second; beyond it Locust warns."""


def shape_class(plan: Plan) -> type[LoadTestShape]:
    """The class of the shape for a plan's scenario.

    Changes come on time, but for one less than a second after another: Locust asks once a second. When the load has lasted as
    long as it should, no users are left; the test ends when all their requests have ended, and all records are in the ledger.
    """
    traffic, lasts = plan.traffic, plan.scenario.lasts
    changes = sorted({*(step.at for step in traffic.steps), lasts})

    class Shape(LoadTestShape):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self._users: int | None = None

        def tick(self) -> tuple[int, float] | None:
            now = self.get_run_time()  # type: ignore[no-untyped-call]
            if now >= lasts:
                return self._end()
            if users_at(traffic, now) == self._users:
                # Not to miss a change by what is left of Locust's second.
                ahead = [at for at in changes if now < at < now + _TICK]
                gevent.sleep(max(0.0, ahead[0] - now) if ahead else 0.0)
                now = ahead[0] if ahead else now
            return self._load(users_at(traffic, now) if now < lasts else 0)

        def _load(self, users: int) -> tuple[int, float]:
            more = abs(users - (self._users or 0))
            self._users = users
            return users, max(_AT_ONCE, more)

        def _end(self) -> tuple[int, float] | None:
            if self._users != 0:
                return self._load(0)
            assert self.runner is not None
            until = lasts + plan.waits + _LAST_REPORTS
            while not idle(self.runner, plan.ledger) and self.get_run_time() < until:  # type: ignore[no-untyped-call]
                gevent.sleep(_POLL)
            return None

    return Shape
