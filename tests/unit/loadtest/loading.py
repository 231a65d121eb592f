"""Runs a scenario's traffic, and prints what the ledger has: a process of its own, since Locust patches what it touches."""

from __future__ import annotations

import dataclasses
import json
import sys

import locust  # noqa: F401

from services.loadtest.scenario import Scenario
from services.loadtest.traffic.loop import make_load_alone
from services.loadtest.traffic.plan import Plan


def planned(text: str) -> Plan:
    order = json.loads(text)
    return Plan(Scenario.model_validate({"name": "x", "title": "x", **order["scenario"]}), order["url"], "demo_model")


def show(plan: Plan) -> None:
    assert plan.ledger.began is not None
    records = [dataclasses.asdict(record) for record in plan.ledger.records(plan.ledger.began)]
    print("FOUND " + json.dumps({"records": records, "generator": dataclasses.asdict(plan.ledger.generator())}), flush=True)


if __name__ == "__main__":
    plan = planned(sys.argv[1])
    environment = make_load_alone(plan)
    show(plan)
    counted = {name: [entry.num_requests, entry.num_failures] for (name, _), entry in environment.stats.entries.items()}
    print("COUNTED " + json.dumps(counted), flush=True)
