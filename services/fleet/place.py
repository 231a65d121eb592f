"""Where a replica is, and what follows from it for the settings of its service."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray

from shared.addresses import is_loopback, is_wildcard
from shared.security import keygen
from shared.settings import ServiceSettings

S = TypeVar("S", bound=ServiceSettings)


@dataclass(frozen=True, slots=True)
class Place:
    """The replica's node by its address, those of all nodes, and the cores that the replica may use."""

    address: str
    nodes: Collection[str]
    cpus: float

    @property
    def alone(self) -> bool:
        """Whether the cluster is this machine, as far as addresses tell."""
        return {self.address}.issuperset(self.nodes) or all(is_loopback(node) for node in self.nodes)


def here(cpus: float) -> Place:
    """The place of the replica that runs this."""
    nodes = {str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]}
    return Place(ray.util.get_node_ip_address(), nodes, cpus)


def settings_at(place: Place, kind: type[S], given: Mapping[str, Any]) -> S:
    """Settings of a service from ``given`` and the environment, and, where these say nothing, from the place: the node's
    address with keys, else loopback and a secret of this user on this machine.

    Raises:
        ValueError: the services are to talk between machines, and have no keys; or a value is wrong.
    """
    settings = kind(**given)
    chosen: dict[str, Any] = {}
    if "threads" not in settings.model_fields_set:
        chosen["threads"] = max(1, int(place.cpus))
    closed = settings.secret_file is None and not settings.plain_seam
    if closed and not place.alone:
        raise ValueError(
            f"the cluster has nodes at {', '.join(sorted(place.nodes))}, and the services have no keys to know each other by: "
            "set secret_file to a file that all nodes have (python -m shared.security keygen makes one), or plain_seam to true "
            "if nobody else is on that network"
        )
    if closed:
        chosen["secret_file"] = own_secret(Path(tempfile.gettempdir()))
    if "host" not in settings.model_fields_set:
        chosen["host"] = "127.0.0.1" if closed and not is_loopback(place.address) else place.address
    return settings.model_copy(update=chosen)


def reached_at(place: Place, host: str) -> str:
    """The host by which others reach what listens on ``host``."""
    return place.address if is_wildcard(host) else host


def own_secret(temporary: Path) -> Path:
    """The secret of this user's fleets on this machine, made where there is none.

    Raises:
        ValueError: its folder in ``temporary`` is somebody else's, or open to others.
    """
    folder = temporary / f"epd-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid() or there.st_mode & 0o077:
        raise ValueError(f"{folder} is no folder of this user's alone; remove it, or set secret_file")
    secret = folder / "fleet-secret"
    keygen(secret)
    return secret
