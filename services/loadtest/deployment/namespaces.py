"""Network namespaces for encoders on one machine, so that what lies between them and the rest can fail like a network."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from services.loadtest.deployment import network
from services.loadtest.deployment.network import Command, Conditions
from services.loadtest.deployment.route import CannotDo

# For benchmarks of networks (RFC 2544): no host of anybody's has such an address.
_RANGE = ipaddress.IPv4Network("198.18.0.0/15")
_NAME = re.compile(r"epd(\d+)-(\d+)")
_INSIDE = "eth0"


class Namespaces:
    """A namespace for each name, with a link to the host's network. Needs root. Leaves nothing behind.

    The host has one address for all of them, ``host``; packets to a namespace go through a virtual cable of its own. Names
    carry this process's id, so that what a run that crashed left is found and removed by the next.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._spaces: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._slow: dict[str, Conditions] = {}
        self._netem = False
        self.host = ""

    def __enter__(self) -> Self:
        """Raises CannotDo where namespaces cannot be made."""
        if reason := obstacle():
            raise CannotDo(reason)
        sweep()
        self._netem = has_netem()
        subnet = free_subnet(_networks())
        hosts = subnet.hosts()
        self.host = str(next(hosts))
        try:
            taken = {int(match[2]) for match in _NAME.finditer(_run(("ip", "netns", "list"))) if int(match[1]) == os.getpid()}
            numbers = (number for number in range(1, 1000) if number not in taken)
            for name, number, address in zip(self._names, numbers, hosts, strict=False):
                self._add(name, number, str(address))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for space in self._spaces.values():
            _remove(space)
        self._spaces.clear()

    def address(self, name: str) -> str:
        """The address inside the namespace."""
        return self._addresses[name]

    def inside(self, name: str, command: Iterable[str]) -> list[str]:
        """The command that runs another inside."""
        return ["ip", "netns", "exec", self._spaces[name], *command]

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
        for command in network.shape(_outside(self._spaces[name]), conditions, self._netem):
            _run(command)

    def restore(self, name: str) -> None:
        """The link is as it was at first."""
        conditions = self._slow.pop(name, None)
        if conditions is None:
            return
        self._all(name, [*network.lose_no_more(conditions, self._netem), *network.unshape(_INSIDE, conditions, self._netem)])
        for command in network.unshape(_outside(self._spaces[name]), conditions, self._netem):
            _run(command)

    def _add(self, name: str, number: int, address: str) -> None:
        space = f"epd{os.getpid()}-{number}"
        _run(("ip", "netns", "add", space))
        self._spaces[name], self._addresses[name] = space, address
        outside = _outside(space)
        _run(("ip", "link", "add", outside, "type", "veth", "peer", "name", _INSIDE, "netns", space))
        _run(("ip", "address", "add", f"{self.host}/32", "peer", f"{address}/32", "dev", outside))
        _run(("ip", "link", "set", outside, "up"))
        _run(("ip", "-n", space, "address", "add", f"{address}/32", "peer", f"{self.host}/32", "dev", _INSIDE))
        _run(("ip", "-n", space, "link", "set", "lo", "up"))
        _run(("ip", "-n", space, "link", "set", _INSIDE, "up"))

    def _all(self, name: str, commands: Sequence[Command]) -> None:
        for command in commands:
            _run(self.inside(name, command))


def obstacle() -> str:
    """Why namespaces cannot be made here, in one sentence; empty where they can."""
    missing = [tool for tool in ("ip", "tc", "iptables", "unshare") if shutil.which(tool) is None]
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


def sweep() -> None:
    """Removes namespaces of load tests whose process is gone."""
    for match in _NAME.finditer(_run(("ip", "netns", "list"))):
        try:
            os.kill(int(match[1]), 0)
        except ProcessLookupError:
            _remove(match[0])
        except PermissionError:
            continue  # it lives, and is somebody else's


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


def _outside(space: str) -> str:
    return space.replace("-", "h")


def _remove(space: str) -> None:
    # The cable goes with the namespace, but only when the last process in there is gone; and names can only be used once.
    with contextlib.suppress(CannotDo):
        _run(("ip", "link", "delete", _outside(space)))
    with contextlib.suppress(CannotDo):
        _run(("ip", "netns", "delete", space))


def _run(command: Sequence[str]) -> str:
    """What a command writes. Raises CannotDo where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotDo(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise CannotDo(f"{' '.join(command)}: {(done.stderr or done.stdout).strip() or f'status {done.returncode}'}")
    return done.stdout
