"""A composed pair: its parts are containers of this machine's Docker engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import docker
from docker.errors import APIError, DockerException

from services.loadtest.deployment import compose
from services.loadtest.deployment.base import LANGUAGE, Deployment
from services.loadtest.deployment.helper import Helper
from services.loadtest.deployment.network import Conditions
from services.loadtest.deployment.route import CannotDo, read_secret
from services.loadtest.deployment.verbs import NETWORK
from services.loadtest.scenario import Action

_READY = 60.0  # seconds for a project that was just started
_ALIVE = ("running", "paused")  # and so it has a network namespace
_SHARES = 1024  # what Docker gives where nothing else is said
_PORTS = {"encoder": 8001, LANGUAGE: 8000}


class ComposeProject(Deployment):
    """The containers of a compose project: of its service ``language`` one, and of ``encoder`` (or ``encoder-…``) all.

    Containers are asked for their state by the Docker engine, and reached by their own addresses.
    """

    def __init__(self, project: str | None, target: str | None, secret_file: Path | None, helper_image: str) -> None:
        super().__init__()
        self._project = project
        self._target = target
        self._secret_file = secret_file
        self._helper_image = helper_image
        self._ids: dict[str, str] = {}
        self._off: dict[str, dict[str, list[str]]] = {}  # networks that a part was taken off, and its names there
        self._cut: set[str] = set()
        self._slow: dict[str, Conditions] = {}
        self._shares: dict[str, int] = {}  # of the processors, which a part gets back when it is up

    def __enter__(self) -> Self:
        """Finds the containers. Raises CannotDo where they are not there."""
        with _told():
            self._engine = docker.from_env()
            self._helper = Helper(self._engine, self._helper_image)
            project = self._project or compose.own_project(self._engine) or compose.only_project(self._engine)
            there = compose.containers(self._engine, project)
            encoders = [each for each in there if compose.service(each).startswith("encoder")]
            languages = [each for each in there if compose.service(each) == LANGUAGE]
            if not languages or not encoders:
                raise CannotDo(
                    f"compose project {project!r} has no containers of services language and encoder: start it first"
                )
            self.encoders = tuple(f"encoder-{number}" for number in range(1, len(encoders) + 1))
            self.parts = (*self.encoders, LANGUAGE)
            found = [*encoders, languages[0]]
            self._ids = {part: container.id for part, container in zip(self.parts, found, strict=True)}
            self.url = self._target or self.address(LANGUAGE)
            self._use_secret(self._secret(encoders))
        self._await_ready(project)
        return self

    def __exit__(self, *error: Any) -> None:
        for part in list(self._shares):
            self._settle(part)
        super().__exit__(*error)
        self._engine.close()

    def address(self, part: str) -> str:
        with _told():
            container = self._get(part)
        if part == LANGUAGE and self._target:
            return self._target
        found = [each["IPAddress"] for each in compose.networks(container).values() if each["IPAddress"]]
        if not found:
            raise CannotDo(f"{part} has no address: it does not run, or is on no network")
        port = compose.variables(container).get("EPD_PORT") or _PORTS[LANGUAGE if part == LANGUAGE else "encoder"]
        return f"http://{found[0]}:{port}"

    def unable(self, action: Action) -> str:
        if action.verb not in NETWORK or (action.verb == "disconnect" and action.options.get("by") == "network"):
            return ""
        if action.verb in ("connect", "restore"):
            return ""
        conditions = Conditions.parse(action.options) if action.verb == "slow" else None
        return self._helper.obstacle() or self._helper.trial(conditions)

    def healthy(self, part: str) -> bool:
        if not super().healthy(part):
            return False
        self._settle(part)
        return True

    def explain(self, part: str) -> str:
        try:
            with _told():
                container = self._get(part)
                state = container.attrs["State"]
                log = container.logs(tail=8).decode(errors="replace").strip()
        except CannotDo as error:
            return str(error)
        return f"its container is {state['Status']} (exit status {state['ExitCode']}); the end of its log:\n{log}"

    def kill(self, part: str) -> None:
        with _told():
            container = self._get(part)
            if container.status in (*_ALIVE, "restarting"):
                container.kill()
                container.wait(timeout=20)

    def stop(self, part: str) -> None:
        with _told():
            self._get(part).stop()

    def start(self, part: str) -> None:
        with _told():
            container = self._get(part)
            if container.status in _ALIVE:
                return
            self._make_meek(part, container)
            container.start()
            # It has a new network namespace, and so none of what was done to the old one's.
            if part in self._cut:
                self._helper.partition(container.id)
            if part in self._slow:
                self._helper.slow(container.id, self._slow[part])

    def pause(self, part: str) -> None:
        with _told():
            self._get(part).pause()

    def resume(self, part: str) -> None:
        with _told():
            container = self._get(part)
            if container.status == "paused":
                container.unpause()

    def disconnect(self, part: str, options: Mapping[str, str]) -> None:
        """Drops its packets; ``by=network`` takes it off its networks instead, which breaks connections and names."""
        with _told():
            container = self._get(part)
            if options.get("by") != "network":
                if part not in self._cut and container.status in _ALIVE:
                    self._helper.partition(container.id)
                self._cut.add(part)
                return
            off = self._off.setdefault(part, {})
            for network, settings in compose.networks(container).items():
                # The container's short id is a name that Docker gives by itself.
                off[network] = [name for name in settings.get("Aliases") or [] if not container.id.startswith(name)]
                self._engine.networks.get(network).disconnect(container.id, force=True)

    def connect(self, part: str) -> None:
        with _told():
            container = self._get(part)
            off = self._off.get(part, {})
            for network in list(off):
                self._engine.networks.get(network).connect(container.id, aliases=off[network])
                del off[network]
            if part in self._cut:
                if container.status in _ALIVE:
                    self._helper.heal(container.id)
                self._cut.discard(part)

    def slow(self, part: str, options: Mapping[str, str]) -> None:
        with _told():
            self.restore(part)
            conditions = self._slow[part] = Conditions.parse(options)
            container = self._get(part)
            if container.status in _ALIVE:
                self._helper.slow(container.id, conditions)

    def restore(self, part: str) -> None:
        with _told():
            conditions = self._slow.pop(part, None)
            container = self._get(part)
            if conditions is not None and container.status in _ALIVE:
                self._helper.restore(container.id, conditions)

    def _make_meek(self, part: str, container: Any) -> None:
        """Lets everybody else compute first while it starts, as ``process.Process.start`` does and for the same reason."""
        if part in self._shares:  # it had not come up yet
            return
        shares = container.attrs["HostConfig"].get("CpuShares") or _SHARES
        with contextlib.suppress(APIError):  # some engines cannot; it is a courtesy
            container.update(cpu_shares=shares // 8)
            self._shares[part] = shares

    def _settle(self, part: str) -> None:
        if (shares := self._shares.pop(part, None)) is not None:
            with _told():
                self._get(part).update(cpu_shares=shares)

    def _await_ready(self, project: str) -> None:
        deadline = time.monotonic() + _READY
        while not self.ready():
            if time.monotonic() > deadline:
                down = [part for part in self.parts if not self.healthy(part)]
                why = f"{', '.join(down)} not up" if down else "its language service does not reach all encoders"
                raise CannotDo(f"compose project {project!r} was not ready within {_READY:g} s: {why}")
            time.sleep(0.1)

    def _get(self, part: str) -> Any:
        return self._engine.containers.get(self._ids[part])

    def _secret(self, encoders: list[Any]) -> bytes | None:
        """The deployment secret: of the file that was given, or as a running encoder has it."""
        if self._secret_file is not None:
            return read_secret(self._secret_file)
        for container in encoders:
            if container.status == "running" and compose.variables(container).get("EPD_SECRET_FILE"):
                code, written = container.exec_run(["sh", "-c", 'cat "$EPD_SECRET_FILE"'])
                if code == 0:
                    return bytes(written).strip()
                raise CannotDo(f"the secret of {container.name} cannot be read: {written.decode(errors='replace').strip()}")
        return None


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Says what the Docker engine has against it."""
    try:
        yield
    except APIError as error:
        raise CannotDo(f"Docker refused: {error.explanation or error}") from error
    except DockerException as error:
        raise CannotDo(f"the Docker engine cannot be reached: {error}; is it running, and may this user use it?") from error
    except OSError as error:  # of the connection to it, and of waiting for an answer
        raise CannotDo(f"the Docker engine did not answer: {error}") from error
