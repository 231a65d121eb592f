"""What is loaded and made to fail: a pair of one's own, containers, a fleet, or a server somewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.loadtest.deployment.base import Deployment
from services.loadtest.deployment.containers import ComposeProject
from services.loadtest.deployment.local import LocalPair
from services.loadtest.deployment.ray import RayFleet
from services.loadtest.deployment.remote import RemoteDeployment
from services.loadtest.deployment.route import CannotDo
from services.loadtest.scenario import Scenario

__all__ = ["CannotDo", "Choice", "Deployment", "open_deployment"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which deployment is meant."""

    target: str | None = None
    """Base URL of the server, without ``/v1``."""
    encoders: tuple[str, ...] = ()
    """Base URLs of its encoders, where their fault route may be used."""
    compose_project: str | None = None
    docker: bool = False
    """Whether the parts are containers of this machine's Docker engine."""
    secret_file: Path | None = None
    """The deployment secret, where encoders need a token."""
    ray: str | None = None
    """Address of the Ray cluster that the server is a fleet on."""
    api_key: str | None = None
    """A key of the API, where the server asks for one."""
    logs: Path = Path("build/loadtest")
    """Folder for the logs of what is started."""
    helper_image: str = "epd-loadtest"
    """Image with ``tc`` and ``iptables``, for network faults of containers."""


def open_deployment(scenario: Scenario, choice: Choice) -> Deployment:
    """The deployment that is meant, to be entered: a pair that is started for the scenario where nothing else is said.

    Raises:
        CannotDo: the choice contradicts itself.
    """
    if choice.docker or choice.compose_project:
        return ComposeProject(choice.compose_project, choice.target, choice.secret_file, choice.helper_image)
    if choice.ray is not None:
        if choice.target is None:
            raise CannotDo("--ray needs --target, the address at which Serve answers")
        return RayFleet(choice.target, choice.ray, choice.secret_file, choice.api_key)
    if choice.target is not None:
        return RemoteDeployment(choice.target, choice.encoders, choice.secret_file, choice.api_key)
    if choice.encoders:
        raise CannotDo("--encoder is of no use without --target: a pair of this tool's own knows its encoders")
    return LocalPair(scenario, choice.logs)
