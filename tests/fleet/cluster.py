"""A Ray cluster of several nodes on this machine, for tests: each node is a raylet of its own with all that it starts."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from services.loadtest.ports import free_port
from tests.processes import ROOT, wait_for

_OBJECT_STORE = 80_000_000  # bytes; nothing large passes through it
_UP = 240.0  # seconds for a node to come up
_SYSTEM = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
"""A node that is gone is known to be after three seconds, rather than after Ray's usual 15 and more."""


class Node:
    """One node: ``ray start --block`` and what it starts. It has these resources, and no others count."""

    def __init__(self, name: str, log: Path, arguments: list[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).parent / "ray"), "start", "--block", *arguments],
                cwd=ROOT,
                env=dict(environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def started(self) -> bool:
        """Whether ``ray start`` has started everything. Raises AssertionError where it ended instead."""
        told = self._log.read_text(errors="replace")
        assert self._process.poll() is None, f"node {self.name} ended:\n{told}"
        return "Ray runtime started" in told

    def processes(self) -> list[psutil.Process]:
        """All its processes: Ray's own, and those of actors."""
        try:
            top = psutil.Process(self._process.pid)
            return [*top.children(recursive=True), top]
        except psutil.NoSuchProcess:
            return []

    def gone(self) -> bool:
        """Whether it has ended, by whatever."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL for everything on it at once, as when a machine loses its power; returns when all is gone. Ray's own way to
        stop takes half a minute, and nothing here is worth it."""
        there = self.processes()
        for process in there:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(20)
        psutil.wait_procs(there, timeout=20)


class Cluster:
    """A head node and others, which come and go. Several clusters of a machine do not meet: ports are free ones, files lie in a
    folder of their own (a short one: paths of sockets are), and nothing listens beyond loopback."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._folder = Path(tempfile.mkdtemp(prefix="epd-ray-", dir="/tmp"))
        self._port = free_port()
        self.address = f"127.0.0.2:{self._port}"
        self.nodes: dict[str, Node] = {}
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("EPD_", "RAY_"))}
        self.environment = {
            **clean,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": str(self._folder),
            "RAY_ADDRESS": self.address,
            "PYTHONPATH": str(ROOT),
        }
        """For all that has to do with this cluster."""

    def add(self, name: str, cpus: int, **resources: float) -> Node:
        """Starts a node, the head first; returns when it is up."""
        arguments = [
            f"--num-cpus={cpus}",
            "--num-gpus=0",
            f"--resources={json.dumps(resources)}",
            f"--object-store-memory={_OBJECT_STORE}",
            f"--node-ip-address=127.0.0.{len(self.nodes) + 2}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--dashboard-agent-listen-port={free_port()}",
            "--disable-usage-stats",
        ]
        environment = dict(self.environment)
        if self.nodes:
            arguments.append(f"--address={self.address}")
        else:
            del environment["RAY_ADDRESS"]
            arguments += [
                "--head",
                f"--port={self._port}",
                "--include-dashboard=false",
                f"--ray-client-server-port={free_port()}",
                f"--temp-dir={self._folder}",
                f"--system-config={json.dumps(_SYSTEM)}",
            ]
        node = self.nodes[name] = Node(name, self._logs / f"{name}.log", arguments, environment)
        wait_for(lambda: node.started, _UP, f"the start of node {name}")
        return node

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # The head last: it is told of what ends.
        for node in reversed(self.nodes.values()):
            node.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
