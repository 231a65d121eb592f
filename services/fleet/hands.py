"""``python -m services.fleet.hands ADDRESS``: lets a load tester see a fleet's replicas, and end their processes and nodes.

It reads orders from standard input, one JSON object a line, and answers each with one line on standard output. It is a process
of its own since load testers and Ray do not want to share one. Processes are ended as the system ends them, by SIGKILL on the
node where they run: Serve is told nothing, and has to notice.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_PATIENCE = 30.0  # seconds for anything that is asked of the cluster
_GLANCE = 3.0  # seconds for a node to tell what one of its processes listens on; one that died tells nothing
_LAST = 0.05  # seconds that are enough for an answer to leave
_HEAD = "node:__internal_head__"  # a resource that the head node has
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a deployment, as Serve knows it and as its node sees its process."""

    deployment: str
    name: str
    node: str
    host: str
    pid: int
    running: bool
    """Whether Serve has taken it into service."""
    ports: tuple[int, ...]
    """Those that it listens on."""
    head: bool
    """Whether its node is the head of the cluster."""


class Hand:
    """An actor on one node."""

    def ports(self, pid: int) -> tuple[int, ...]:
        """The ports that a process and its children listen on; none of one that is gone."""
        sockets = {link for each in (pid, *descendants(pid)) for link in _sockets(each)}
        lines = [line.split() for table in ("tcp", "tcp6") for line in _lines(f"/proc/{pid}/net/{table}")[1:]]
        return tuple(
            sorted({int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == _LISTENS and line[9] in sockets})
        )

    def kill(self, pid: int) -> None:
        """SIGKILL for a process and its children.

        Raises:
            ProcessLookupError: it has ended already.
        """
        children = descendants(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise ProcessLookupError(f"the process {pid} has ended already") from None
        _kill(children)

    def kill_node(self) -> None:
        """SIGKILL for this process's raylet and all that it has started, this process last; a moment after the answer.

        Raises:
            ProcessLookupError: the parent of this process is no raylet.
        """
        raylet, own = os.getppid(), os.getpid()
        if _lines(f"/proc/{raylet}/comm") != ["raylet"]:
            raise ProcessLookupError(f"the parent of the process {own}, {raylet}, is no raylet: nothing was killed")
        others = [pid for pid in descendants(raylet) if pid != own]
        threading.Timer(_LAST, _kill, ([raylet, *others, own],)).start()


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, " ".join(_lines(str(tasks))).split()):
            found += [child, *descendants(child)]
    return found


def _sockets(pid: int) -> Iterable[str]:
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # closed meanwhile
            if (target := os.readlink(link)).startswith("socket:["):
                yield target[8:-1]


def _lines(path: str) -> list[str]:
    with suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Hands:
    """A hand on every node where one is needed."""

    def __init__(self) -> None:
        self._hands: dict[str, Any] = {}

    def look(self) -> list[Replica]:
        """All replicas of all deployments.

        Raises:
            ray.exceptions.RayError: the cluster does not answer.
        """
        nodes = ray.nodes()
        alive = {node["NodeID"] for node in nodes if node["Alive"]}
        heads = {node["NodeID"] for node in nodes if _HEAD in node["Resources"]}
        silent = set[str]()
        self._hands = {node: hand for node, hand in self._hands.items() if node in alive}
        try:
            controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        except ValueError:  # nothing is deployed
            return []
        details = ray.get(controller.get_serve_instance_details.remote(), timeout=_PATIENCE)
        found = []
        for application in details["applications"].values():
            for deployment, told in application["deployments"].items():
                for each in told["replicas"]:
                    # One that is starting has no process yet.
                    pid, node = each.get("pid") or 0, each.get("node_id") or ""
                    ports = self._ports(node, pid, silent) if pid and node in alive else ()
                    running, host = each["state"] == "RUNNING", each.get("node_ip") or ""
                    found.append(Replica(deployment, each["replica_id"], node, host, pid, running, ports, node in heads))
        return found

    def kill(self, node: str, pid: int) -> None:
        """Ends a process. Raises as ``look`` does, and ValueError where it has ended already."""
        _told(self._hand(node).kill.remote(pid))

    def kill_node(self, node: str) -> None:
        """Ends all that runs on a node. Raises as ``look`` does, and ValueError where nothing would be left of the cluster, or
        the node's raylet is not found."""
        if any(each["NodeID"] == node and _HEAD in each["Resources"] for each in ray.nodes()):
            raise ValueError("the replica runs on the head node, with which the cluster would end")
        hand = self._hand(node)
        ray.get(hand.ports.remote(0), timeout=_PATIENCE)  # it is there
        with suppress(ray.exceptions.RayError):  # it may die before its answer has left
            _told(hand.kill_node.remote())
        del self._hands[node]

    def _ports(self, node: str, pid: int, silent: set[str]) -> tuple[int, ...]:
        """None of a node among those that are ``silent``, of which it is one from now on if it does not answer."""
        if node in silent:
            return ()
        try:
            return tuple(ray.get(self._hand(node).ports.remote(pid), timeout=_GLANCE))
        except ray.exceptions.GetTimeoutError:  # the node has died and is not yet known to have, or the hand has yet to start
            silent.add(node)
        except ray.exceptions.RayError:
            silent.add(node)
            self._hands.pop(node, None)
        return ()

    def _hand(self, node: str) -> Any:
        if node not in self._hands:
            where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            actor = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=where)(Hand)
            self._hands[node] = actor.remote()
        return self._hands[node]


def _told(answer: Any) -> Any:
    """What a hand answers. What it raises is a ValueError here, to be told apart from failures of the cluster."""
    try:
        return ray.get(answer, timeout=_PATIENCE)
    except ray.exceptions.RayTaskError as error:
        raise ValueError(str(error.cause)) from error


def obey(order: dict[str, Any], hands: Hands) -> object:
    """Does what one line says.

    Raises:
        ValueError: it says nothing that is known.
        ray.exceptions.RayError: the cluster does not answer.
    """
    match order:
        case {"do": "look"}:
            return [asdict(replica) for replica in hands.look()]
        case {"do": "kill", "node": str(node), "pid": int(pid)}:
            hands.kill(node, pid)
            return None
        case {"do": "kill_node", "node": str(node)}:
            hands.kill_node(node)
            return None
    raise ValueError(f"there is no order {order}")


def main() -> None:
    """Connects to the cluster, and obeys until standard input ends."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where Ray tells of what happens to the cluster
        _obey_all(answers)


def _obey_all(answers: TextIO) -> None:
    ray.init(sys.argv[1], namespace=SERVE_NAMESPACE, log_to_driver=False, logging_level="warning")
    hands = Hands()
    print(json.dumps({"done": None}), file=answers)
    for line in sys.stdin:
        try:
            answer = {"done": obey(json.loads(line), hands)}
        except Exception as error:  # whatever it is, the next order may go better
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
