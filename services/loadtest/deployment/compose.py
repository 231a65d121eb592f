"""Finding the containers of a compose project by their labels."""

from __future__ import annotations

import socket
from typing import Any

import docker
from docker.errors import NotFound

from services.loadtest.deployment.base import LANGUAGE
from services.loadtest.deployment.route import CannotDo

_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"
_NUMBER = "com.docker.compose.container-number"
_ONE_OFF = "com.docker.compose.oneoff"  # those of `docker compose run`


def containers(engine: docker.DockerClient, project: str) -> list[Any]:
    """The containers of a project's services, running or not, in the order of their services and numbers."""
    found = engine.containers.list(all=True, filters={"label": f"{_PROJECT}={project}"})
    services = [each for each in found if each.labels.get(_ONE_OFF, "False") != "True"]
    return sorted(services, key=lambda each: (service(each), int(each.labels.get(_NUMBER, 0))))


def own_project(engine: docker.DockerClient) -> str | None:
    """The project that this process is a container of; None where it is none."""
    try:
        # Docker names a container's host after it.
        return engine.containers.get(socket.gethostname()).labels.get(_PROJECT) or None
    except NotFound:
        return None


def only_project(engine: docker.DockerClient) -> str:
    """The only project with a language service. Raises CannotDo where there is none, or are several."""
    labels = [each.labels for each in engine.containers.list(all=True, filters={"label": _PROJECT})]
    pairs = sorted({each[_PROJECT] for each in labels if each.get(_SERVICE) == LANGUAGE})
    if len(pairs) != 1:
        there = f"there are {', '.join(pairs)}" if pairs else "there is none with a service called language"
        raise CannotDo(f"name the compose project with --project: {there}")
    return str(pairs[0])


def service(container: Any) -> str:
    """The service that it is of."""
    return str(container.labels.get(_SERVICE, ""))


def networks(container: Any) -> dict[str, Any]:
    """The networks that it is on, and what it is there."""
    return dict(container.attrs["NetworkSettings"]["Networks"])


def variables(container: Any) -> dict[str, str]:
    """Its environment."""
    return dict(each.partition("=")[::2] for each in container.attrs["Config"]["Env"] or [])
