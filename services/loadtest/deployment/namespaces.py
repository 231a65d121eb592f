"""Network namespaces for encoders on one machine, so that what lies between them and the rest can fail like a network."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from services.loadtest.deployment import network
from services.loadtest.deployment.network import Command, Conditions
from services.loadtest.deployment.process import bound_to_parent
from services.loadtest.deployment.route import CannotDo

# For benchmarks of networks (RFC 2544): no host of anybody's has such an address.
_RANGE = ipaddress.IPv4Network("198.18.0.0/15")
_INSIDE = "eth0"
_WITHIN = 20.0  # seconds for a command


class Namespaces:
    """A namespace for each name, with a link to the host's network. Needs root. Leaves nothing behind.

    The host has one address for all of them, ``host``; packets to a namespace go through a virtual cable of its own. It has no
    name in the system: it is there as long as processes are in it, of which the first only sleeps, and ends with the thread
    that enters this. So the kernel removes all of it when the load tester is killed.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._sleepers: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        self._slow: dict[str, Conditions] = {}
        self._netem = False
        self.host = ""

    def __enter__(self) -> Self:
        """Raises CannotDo where namespaces cannot be made."""
        if reason := obstacle():
            raise CannotDo(reason)
        self._netem = has_netem()
        hosts = free_subnet(_networks()).hosts()
        self.host = str(next(hosts))
        try:
            for name, address in zip(self._names, hosts, strict=False):
                self._add(name, str(address))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for sleeper in self._sleepers.values():
            # It goes with the namespace, but the kernel takes its time for that.
            with contextlib.suppress(CannotDo):
                _run(("ip", "link", "delete", _outside(sleeper)))
            sleeper.kill()
            sleeper.wait()
        self._sleepers.clear()

    def address(self, name: str) -> str:
        """The address inside the namespace."""
        return self._addresses[name]

    def inside(self, name: str, command: Iterable[str]) -> list[str]:
        """The command that runs another inside."""
        return ["nsenter", f"--net=/proc/{self._sleepers[name].pid}/ns/net", *command]

    def disconnect(self, name: str) -> None:
        """No packet passes any more."""
        self._all(name, network.partition())

    def connect(self, name: str) -> None:
        """They pass again."""
        self._all(name, network.heal())

    def slow(self, name: str, options: Mapping[str, str]) -> None:
        """The link is so, in place of how it was made before."""
        conditions = Conditions.parse(options)
        if name in self._slow:
            self.restore(name)
        self._slow[name] = conditions
        self._all(name, [*network.lose(conditions, self._netem), *network.shape(_INSIDE, conditions, self._netem)])
        for command in network.shape(_outside(self._sleepers[name]), conditions, self._netem):
            _run(command)

    def restore(self, name: str) -> None:
        """The link is as it was at first."""
        conditions = self._slow.pop(name, None)
        if conditions is None:
            return
        self._all(name, [*network.lose_no_more(conditions, self._netem), *network.unshape(_INSIDE, conditions, self._netem)])
        for command in network.unshape(_outside(self._sleepers[name]), conditions, self._netem):
            _run(command)

    def _add(self, name: str, address: str) -> None:
        sleeper = subprocess.Popen(bound_to_parent(["unshare", "--net", "sleep", "infinity"]), start_new_session=True)
        self._sleepers[name], self._addresses[name] = sleeper, address
        _await_namespace(sleeper)
        outside = _outside(sleeper)
        _run(("ip", "link", "add", outside, "type", "veth", "peer", "name", _INSIDE, "netns", str(sleeper.pid)))
        _run(("ip", "address", "add", f"{self.host}/32", "peer", f"{address}/32", "dev", outside))
        _run(("ip", "link", "set", outside, "up"))
        inside = ("address", "add", f"{address}/32", "peer", f"{self.host}/32", "dev", _INSIDE)
        self._all(name, [("ip", *inside), ("ip", "link", "set", "lo", "up"), ("ip", "link", "set", _INSIDE, "up")])

    def _all(self, name: str, commands: Sequence[Command]) -> None:
        for command in commands:
            _run(self.inside(name, command))


def obstacle() -> str:
    """Why namespaces cannot be made here, in one sentence; empty where they can."""
    missing = [tool for tool in ("ip", "tc", "iptables", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"network faults need {' and '.join(missing)} (packages iproute2, iptables, util-linux)"
    if os.geteuid() != 0:
        return "network faults put encoders in network namespaces, which only root can make: run it as root, or with --docker"
    return ""


def trial(conditions: Conditions) -> str:
    """Why the kernel cannot make these conditions, in one sentence; empty where it can. Tried in a namespace of its own."""
    netem = has_netem()
    if conditions.delays and not netem:
        return network.NO_NETEM
    commands = [*network.lose(conditions, netem), *network.shape("lo", conditions, netem)]
    try:
        _run(("unshare", "--net", "sh", "-c", network.script(commands)))
    except CannotDo as error:
        return f"the kernel cannot do it: {error}"
    return ""


def has_netem() -> bool:
    """Whether the kernel has netem, tried in a network namespace of its own."""
    try:
        _run(("unshare", "--net", *network.PROBE))
    except CannotDo:
        return False
    return True


def free_subnet(taken: Iterable[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """A /24 for benchmarks that overlaps nothing of what is taken. Another process looks for one from another place on.

    Raises:
        CannotDo: all are taken.
    """
    there = list(taken)
    subnets = [*_RANGE.subnets(new_prefix=24)]
    first = os.getpid() % len(subnets)
    for subnet in subnets[first:] + subnets[:first]:
        if not any(subnet.overlaps(other) for other in there):
            return subnet
    raise CannotDo(f"no network of {_RANGE} is free on this machine")


def _networks() -> list[ipaddress.IPv4Network]:
    """All networks that this machine has an address in or a route to, but for the default route."""
    found = []
    for link in json.loads(_run(("ip", "-json", "-4", "address"))):
        found += [f"{each['local']}/{each['prefixlen']}" for each in link.get("addr_info", [])]
        found += [each["address"] for each in link.get("addr_info", []) if "address" in each]
    for route in json.loads(_run(("ip", "-json", "-4", "route", "show", "table", "all"))):
        found.append(route["dst"])
    return [ipaddress.IPv4Network(text, strict=False) for text in found if text != "default"]


def _await_namespace(process: subprocess.Popen[bytes]) -> None:
    """Returns when a process that was just started is in its own namespace. Raises CannotDo where it does not get there."""
    ours, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + _WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        if os.readlink(f"/proc/{process.pid}/ns/net") != ours:
            return
        time.sleep(0.005)
    raise CannotDo(f"no network namespace could be made: unshare ended with status {process.poll()}")


def _outside(sleeper: subprocess.Popen[bytes]) -> str:
    return f"epd{sleeper.pid}"


def _run(command: Sequence[str]) -> str:
    """What a command writes. Raises CannotDo where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotDo(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise CannotDo(f"{' '.join(command)}: {(done.stderr or done.stdout).strip() or f'status {done.returncode}'}")
    return done.stdout
