"""How an open loop's rate is shared among Locust's users, each of which stands for some arrivals."""

from __future__ import annotations

from services.loadtest.scenario import Traffic

_MANY_USERS = 100
"""Users of an open loop that Locust starts at once without a warning, and cares for with little work."""
_MOST_USERS = 1000
"""Users where fewer would not do, since loads are far apart."""
_ERROR = 0.005
"""Share of a load that it may be off."""
_FINE_USERS = 50
"""Users at the highest load of a ramp, at least, so that its steps are small."""


def arrivals_per_user(traffic: Traffic) -> float:
    """Arrivals a second that one user makes, on average, so that all loads of the scenario are whole numbers of users.

    Where this cannot be, it is near. One arrival a second where that will do.
    """
    assert traffic.rate is not None
    loads = [load for load in (traffic.rate, *(step.load for step in traffic.steps)) if load]
    highest = max(loads)
    least = _FINE_USERS if traffic.ramp else 1

    def costs(users: int) -> tuple[float, int, float]:
        unit = highest / users
        error = max(abs(_users(load, unit) * unit - load) / load for load in loads)
        return max(0.0, error - _ERROR), max(0, users - _MANY_USERS), abs(users - highest)

    return highest / min(range(least, _MOST_USERS + 1), key=costs)


def users_at(traffic: Traffic, at: float) -> int:
    """Users that Locust should have at a time, in seconds since the load began."""
    load = traffic.load_at(at)
    return _users(load, arrivals_per_user(traffic)) if traffic.open_loop else round(load)


def _users(load: float, unit: float) -> int:
    return max(1, round(load / unit)) if load else 0
