"""A fault that hits nothing is not taken for one that was done, and a node that is gone holds up nobody for long."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from services.fleet import hands
from services.fleet.hands import Hand, Hands


def test_a_process_is_killed_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        Hand().kill(process.pid)
        assert process.wait(30) == -9
        with pytest.raises(ProcessLookupError, match="has ended already"):
            Hand().kill(process.pid)


def test_no_node_is_killed_by_what_no_raylet_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("something would have been killed")

    monkeypatch.setattr(hands.threading, "Timer", never)
    with pytest.raises(ProcessLookupError, match="is no raylet"):
        Hand().kill_node()


class Cluster:
    """Three replicas on a node that does not answer any more, and one on the head node."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": "dead", "Alive": True, "Resources": {}},
            {"NodeID": "head", "Alive": True, "Resources": {"node:__internal_head__": 1.0}},
        ]

    def get_actor(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(get_serve_instance_details=self.method("controller"))

    def method(self, node: str) -> Any:
        return SimpleNamespace(remote=lambda *_: node)

    def get(self, node: str, timeout: float) -> Any:
        self.asked.append((node, timeout))
        if node == "controller":
            where = ["dead", "dead", "head", "dead"]
            told = [{"replica_id": f"r{pid}", "pid": pid, "node_id": at, "state": "RUNNING"} for pid, at in enumerate(where, 1)]
            return {"applications": {"default": {"deployments": {"encoders": {"replicas": told}}}}}
        if node == "dead":
            raise ray.exceptions.GetTimeoutError
        return [8000]


def test_a_node_that_does_not_answer_is_asked_once_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    for name in ("nodes", "get_actor", "get"):
        monkeypatch.setattr(hands.ray, name, getattr(cluster, name))
    monkeypatch.setattr(Hands, "_hand", lambda _, node: SimpleNamespace(ports=cluster.method(node)))
    found = Hands().look()
    assert [(each.name, each.ports, each.head) for each in found] == [
        ("r1", (), False),
        ("r2", (), False),
        ("r3", (8000,), True),
        ("r4", (), False),
    ]
    assert [node for node, _ in cluster.asked] == ["controller", "dead", "head"]
    assert all(timeout <= 3.0 for node, timeout in cluster.asked if node != "controller")
