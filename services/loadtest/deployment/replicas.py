"""The replicas of a Serve application, seen and ended through a process that Ray runs in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from services.loadtest.deployment.route import CannotDo


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of the fleet: where it runs, whether Serve has it in service, and what it listens on."""

    deployment: str
    name: str
    node: str
    host: str
    """The node's address."""
    pid: int
    running: bool
    ports: tuple[int, ...]
    head: bool = False
    """Whether its node is the one with which the cluster would end."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Replica:
        return cls(**{**told, "ports": tuple(told["ports"])})

    def has(self, url: str) -> bool:
        """Whether it is what answers at a URL. Loopback is the address of every machine, where a fleet has only one."""
        where = urlsplit(url)
        return where.port in self.ports and (where.hostname == self.host or where.hostname in ("127.0.0.1", "localhost"))


class Replicas:
    """All replicas on the cluster at ``address``, which is as ``ray.init`` takes it.

    ``environment`` is the process's, where it is another one than this one's. Calls may come from several threads.

    Raises:
        CannotDo: it cannot be reached; all methods but ``close`` raise this where something cannot be done.
    """

    def __init__(self, address: str, environment: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._lock = Lock()
        self._hands = subprocess.Popen(
            [sys.executable, "-m", "services.fleet.hands", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=None if environment is None else dict(environment),
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of the cluster."""
        assert self._hands.stdin is not None
        with suppress(OSError):  # it has ended already
            self._hands.stdin.close()
        try:
            self._hands.wait(10)
        except subprocess.TimeoutExpired:
            self._hands.kill()
            self._hands.wait()

    def look(self) -> list[Replica]:
        """Those that there are now."""
        told = self._order("look")
        assert isinstance(told, list)
        return [Replica.of(each) for each in told]

    def kill(self, replica: Replica) -> None:
        """SIGKILL for its process. That it has ended already cannot be undone, and so CannotDo."""
        self._order("kill", node=replica.node, pid=replica.pid)

    def kill_node(self, node: str) -> None:
        """SIGKILL for all that runs on a node."""
        self._order("kill_node", node=node)

    def _order(self, what: str, **more: object) -> object:
        assert self._hands.stdin is not None
        with self._lock:
            try:
                print(json.dumps({"do": what, **more}), file=self._hands.stdin, flush=True)
            except OSError as error:
                raise CannotDo(f"the cluster {self._address} cannot be reached any more: {error}") from error
            return self._answer()

    def _answer(self) -> object:
        assert self._hands.stdout is not None
        line = self._hands.stdout.readline()
        if not line:
            raise CannotDo(f"the cluster {self._address} cannot be reached, or Ray is not installed here (extra fleet)")
        answer = json.loads(line)
        if "failed" in answer:
            raise CannotDo(str(answer["failed"]))
        return answer["done"]
