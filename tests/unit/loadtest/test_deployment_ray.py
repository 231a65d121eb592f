"""A fleet as the load tester sees it: places that replicas have one after the other, and what can be done to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from services.loadtest.deployment import ray
from services.loadtest.deployment.ray import RayFleet
from services.loadtest.deployment.replicas import Replica
from services.loadtest.deployment.route import CannotDo
from services.loadtest.scenario import Action
from tests.unit.loadtest.serving import serving


class Cluster:
    """Stands in for ``Replicas``, and for the language service: it uses all encoders that are not yet known to be dead."""

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.killed: list[str] = []
        self.refuses = False
        self.known: list[str] = []

    def add(self, name: str, node: str, port: int, running: bool = True, head: bool = False) -> None:
        self.replicas.append(Replica("encoders", name, node, "127.0.0.9", 1, running, (1, port), head))
        self.known.append(f"http://127.0.0.9:{port}")

    def look(self) -> list[Replica]:
        return list(self.replicas)

    def kill(self, replica: Replica) -> None:
        self._refuse()
        self.killed.append(replica.name)

    def kill_node(self, node: str) -> None:
        self._refuse()
        self.killed.append(node)

    def _refuse(self) -> None:
        if self.refuses:
            raise CannotDo("the process 1 has ended already")

    def close(self) -> None:
        pass


def language(cluster: Cluster) -> AbstractContextManager[str]:
    return serving(lambda _: (200, json.dumps({"data": [{"url": url, "state": "ready"} for url in cluster.known]})))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    found.add("a", "n1", 7001)
    found.add("b", "n1", 7002)
    found.add("c", "n2", 7003)
    monkeypatch.setattr(ray, "Replicas", lambda address: found)
    monkeypatch.setattr(ray, "_OFTEN", 0.0)
    monkeypatch.setattr(ray, "_READY", 0.2)
    return found


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[RayFleet]:
    with language(cluster) as url, RayFleet(url, "auto") as deployment:
        yield deployment


def test_the_place_of_a_replica_that_was_killed_belongs_to_the_next(fleet: RayFleet, cluster: Cluster) -> None:
    assert fleet.parts == ("encoder-1", "encoder-2", "encoder-3", "language")
    fleet.carry_out("kill", "encoder-2", {})
    assert cluster.killed == ["b"]
    # Serve and the language service have not noticed yet: the place is nobody's.
    fleet.healthy("encoder-2")
    assert fleet.encoder_urls() == {"encoder-1": "http://127.0.0.9:7001", "encoder-3": "http://127.0.0.9:7003"}
    cluster.add("d", "n2", 7004, running=False)
    fleet.healthy("encoder-2")
    assert "encoder-2" not in fleet.encoder_urls()
    cluster.replicas.pop()
    cluster.add("d", "n2", 7004)
    fleet.healthy("encoder-2")
    assert fleet.encoder_urls()["encoder-2"] == "http://127.0.0.9:7004"


def test_a_node_is_killed_once_and_with_it_all_its_places(fleet: RayFleet, cluster: Cluster) -> None:
    for part in ("encoder-1", "encoder-2"):
        fleet.carry_out("kill", part, {"by": "node"})
    assert cluster.killed == ["n1"]
    with pytest.raises(CannotDo, match="leave more time"):
        fleet.carry_out("kill", "encoder-1", {})
    fleet.healthy("encoder-1")
    assert fleet.encoder_urls() == {"encoder-3": "http://127.0.0.9:7003"}


def test_the_place_of_a_replica_that_ended_in_another_way_belongs_to_the_next_too(fleet: RayFleet, cluster: Cluster) -> None:
    crashed = cluster.replicas.pop(0)
    cluster.known.remove("http://127.0.0.9:7001")
    fleet.healthy("encoder-1")
    assert "encoder-1" not in fleet.encoder_urls()
    fleet.end("hang", "encoder-1", f"{crashed.name}/1")  # it has ended with its process
    cluster.add("d", "n2", 7004)
    fleet.healthy("encoder-1")
    assert fleet.encoder_urls()["encoder-1"] == "http://127.0.0.9:7004"
    fleet.carry_out("kill", "encoder-1", {})
    assert cluster.killed == ["d"]


def test_a_replica_that_the_language_service_does_not_use_for_a_while_keeps_its_place(
    fleet: RayFleet, cluster: Cluster
) -> None:
    before = fleet.encoder_urls()
    for known in ([], ["http://127.0.0.9:7003", "http://127.0.0.9:7001"]):
        cluster.known = known
        fleet.healthy("encoder-2")
        assert fleet.encoder_urls() == before


@pytest.mark.parametrize("options", [{}, {"by": "node"}])
def test_a_kill_that_was_refused_is_not_done(fleet: RayFleet, cluster: Cluster, options: dict[str, str]) -> None:
    before = fleet.encoder_urls()
    cluster.refuses = True
    for part in ("encoder-1", "encoder-2"):
        with pytest.raises(CannotDo, match="ended already"):
            fleet.carry_out("kill", part, options)
    cluster.refuses = False
    fleet.healthy("encoder-1")
    assert fleet.encoder_urls() == before
    fleet.carry_out("kill", "encoder-1", options)
    assert len(cluster.killed) == 1


def test_the_head_node_is_not_killed(cluster: Cluster) -> None:
    cluster.add("d", "n3", 7004, head=True)
    with language(cluster) as url, RayFleet(url, "auto") as fleet:
        fleet.check_lines([Action.parse("1s kill encoder-1 by=node for 1s"), Action.parse("1s kill encoder-4 for 1s")])
        with pytest.raises(CannotDo, match="encoder-4 runs on the head node"):
            fleet.check_lines([Action.parse("1s kill encoder-* by=node for 1s")])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1s pause encoder-1 for 1s", "cannot be made to pause"),
        ("1s kill language for 1s", "aim it at encoders"),
        ("1s kill encoder-1", "end the line with 'for 2s'"),
        ("1s kill encoder-1 for 10s", "end the line with 'for 2s'"),
        ("1s kill encoder-1 by=hand for 1s", "kill by=hand"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_load(fleet: RayFleet, line: str, reason: str) -> None:
    with pytest.raises(CannotDo, match=reason):
        fleet.check_lines([Action.parse(line)])


@pytest.mark.parametrize(
    "line", ["1s kill encoder-* for 1s", "1s kill encoder-1 by=node for 500ms", "1s hang encoder-2 for 9s"]
)
def test_what_can_be_done(fleet: RayFleet, line: str) -> None:
    fleet.check_lines([Action.parse(line)])


def test_another_clusters_fleet_is_not_taken_for_this_one(cluster: Cluster) -> None:
    cluster.known.append("http://127.0.0.9:7009")
    with (
        language(cluster) as url,
        pytest.raises(CannotDo, match="4 encoders that are ready, and 3 of them"),
        RayFleet(url, "auto"),
    ):
        pass
