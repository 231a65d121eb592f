"""A small cluster without Kubernetes: a network namespace for each pod, all on one bridge, as on a node. Needs root. What is
made has no names in the system, and goes with the processes that hold it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from services.loadtest.deployment.process import bound_to_parent
from tests.manifests.chart import Object
from tests.manifests.firewall import commands
from tests.manifests.policies import End
from tests.processes import ROOT, wait_for

_WITHIN = 60.0  # seconds for a command


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call over HTTP brought."""

    status: int
    body: str


class Cluster:
    """The network namespaces of ``ends``, of pods and of machines outside alike: each reaches every other one until policies
    are enforced. ``names`` are addresses by host name, which processes inside resolve; ``folder`` keeps their logs."""

    def __init__(self, ends: Sequence[End], names: Mapping[str, str], folder: Path) -> None:
        self._ends = {end.name: end for end in ends}
        self._folder = folder
        self._hosts = folder / "hosts"
        self._hosts.write_text("".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **names}.items()))
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._owned = ExitStack()

    def __enter__(self) -> Cluster:
        try:
            node = self._hold("node")
            run("nsenter", f"--net={node}", "ip", "link", "add", "bridge", "type", "bridge")
            run("nsenter", f"--net={node}", "ip", "link", "set", "bridge", "up")
            for index, end in enumerate(self._ends.values()):
                self._connect(end, f"pod{index}")
        except BaseException:
            self._owned.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._owned.close()

    def enforce(self, policies: Sequence[Object]) -> None:
        """Makes the policies hold for every pod."""
        for end in self._ends.values():
            for command in commands(policies, end, [*self._ends.values()]):
                run("nsenter", f"--net={self._namespace(end.name)}", *command)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """A process inside, with these variables, ended with the cluster. Names are those of the cluster, for it alone."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                bound_to_parent(self._inside(name, command)),
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._owned.callback(end, process)
        return process

    def log(self, name: str) -> Path:
        """What the processes of a pod have written."""
        return self._folder / f"{name}.log"

    def connects(self, source: str, address: str, port: int, patience: float = 3.0) -> bool:
        """Whether a connection is made within ``patience`` seconds."""
        program = f"import socket; socket.create_connection(({address!r}, {port}), {patience})"
        done = subprocess.run(self._inside(source, [sys.executable, "-c", program]), capture_output=True, timeout=_WITHIN)
        return done.returncode == 0

    def connections(self, asked: Sequence[tuple[str, str, int]]) -> set[tuple[str, str, int]]:
        """Those of (from, to, port) by which a connection is made; they are tried side by side."""
        with ThreadPoolExecutor(16) as threads:
            made = threads.map(lambda each: self.connects(each[0], self._ends[each[1]].address, each[2]), asked)
            return {each for each, there in zip(asked, made, strict=True) if there}

    def call(self, source: str, url: str, body: object = None, timeout: float = 60.0) -> Answer:
        """A GET, or a POST of JSON.

        Raises:
            ConnectionError: there is no answer.
        """
        command = [sys.executable, "-m", "tests.manifests.caller", url, str(timeout)]
        sent = "" if body is None else json.dumps(body)
        done = subprocess.run(
            self._inside(source, command), input=sent, cwd=ROOT, capture_output=True, text=True, timeout=timeout + _WITHIN
        )
        if done.returncode:
            raise ConnectionError(done.stderr.strip().splitlines()[-1])
        status, _, text = done.stdout.partition("\n")
        return Answer(int(status), text)

    def _inside(self, name: str, command: Sequence[str]) -> list[str]:
        with_names = f'mount --bind {self._hosts} /etc/hosts && exec "$@"'
        unshared = ["unshare", "--mount", "--propagation", "private", "sh", "-c", with_names, "sh"]
        return ["nsenter", f"--net={self._namespace(name)}", *unshared, *command]

    def _namespace(self, name: str) -> str:
        return f"/proc/{self._holders[name].pid}/ns/net"

    def _hold(self, name: str) -> str:
        """A network namespace, and the process that only sleeps in it."""
        ours = os.readlink("/proc/self/ns/net")
        holder = subprocess.Popen(bound_to_parent(["unshare", "--net", "sleep", "infinity"]), start_new_session=True)
        self._owned.callback(end, holder)
        self._holders[name] = holder

        def separate() -> bool:
            assert holder.poll() is None, "no network namespace could be made"
            return os.readlink(self._namespace(name)) != ours

        wait_for(separate, _WITHIN, f"the network namespace of {name}")
        return self._namespace(name)

    def _connect(self, machine: End, cable: str) -> None:
        inside, node = self._hold(machine.name), self._holders["node"].pid
        pod = self._holders[machine.name].pid
        run("ip", "link", "add", cable, "netns", str(node), "type", "veth", "peer", "name", "eth0", "netns", str(pod))
        run("nsenter", f"--net={self._namespace('node')}", "ip", "link", "set", cable, "master", "bridge", "up")
        for command in (
            ("address", "add", f"{machine.address}/32", "dev", "eth0"),
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "dev", "eth0"),
        ):
            run("nsenter", f"--net={inside}", "ip", *command)


def run(*command: str) -> None:
    """Runs a command, which must not fail."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, whether it wants to or not."""
    process.kill()
    process.wait()
