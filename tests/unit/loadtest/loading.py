"""Runs a scenario's traffic, and prints what the ledger has: a process of its own, since Locust patches what it touches.

As a script it is the only generator; as a locustfile (settings in ``LOADING``) it is one of several, and its master prints.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

import locust
from locust.env import Environment
from locust.runners import WorkerRunner

from services.loadtest.scenario import Scenario
from services.loadtest.traffic.headless import run
from services.loadtest.traffic.plan import Plan
from services.loadtest.traffic.shape import shape_class
from services.loadtest.traffic.users import client_class


def planned(text: str) -> Plan:
    order = json.loads(text)
    return Plan(Scenario.model_validate({"name": "x", "title": "x", **order["scenario"]}), order["url"], "demo_model")


def show(plan: Plan) -> None:
    assert plan.ledger.began is not None
    records = [dataclasses.asdict(record) for record in plan.ledger.records(plan.ledger.began)]
    print("FOUND " + json.dumps({"records": records, "generator": dataclasses.asdict(plan.ledger.generator())}), flush=True)


if __name__ == "__main__":
    plan = planned(sys.argv[1])
    environment = run(plan)
    show(plan)
    counted = {name: [entry.num_requests, entry.num_failures] for (name, _), entry in environment.stats.entries.items()}
    print("COUNTED " + json.dumps(counted), flush=True)
elif "LOADING" in os.environ:
    plan = planned(os.environ["LOADING"])
    Client, Shape = client_class(plan), shape_class(plan)

    @locust.events.init.add_listener  # type: ignore[untyped-decorator]
    def install(environment: Environment, **_: Any) -> None:
        plan.install(environment)
        if not isinstance(environment.runner, WorkerRunner):
            environment.events.test_stop.add_listener(lambda **_: show(plan))  # type: ignore[no-untyped-call]
