"""The pair as ``docker compose up`` brings it up, in a project of its own."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import httpx
import pytest

from examples.scenes import png, random_scene
from tests.chats import user
from tests.processes import ROOT, free_port, wait_for

BUILD_TIMEOUT = 1500
UP_TIMEOUT = 180


def run(*command: str, timeout: float = 60, environment: dict[str, str] | None = None) -> str:
    """What ``command`` prints. A command that fails, fails the test with all that it said."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, timeout=timeout, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"
    return done.stdout.strip()


def inspect(thing: str, field: str) -> str:
    """A field of a container or an image, as a Go template names it."""
    return run("docker", "inspect", "--format", f"{{{{{field}}}}}", thing)


def compose_command() -> tuple[str, ...]:
    """``docker compose`` where the plugin is installed, else ``docker-compose``."""
    assert shutil.which("docker"), "these tests need a Docker engine and docker compose"
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True)
    return ("docker", "compose") if plugin.returncode == 0 else ("docker-compose",)


class ComposedPair:
    """A project of its own name, so that it meets no other, and a client of its language service. ``settings`` are variables of
    ``docker-compose.yml``, by their names without ``EPD_``."""

    def __init__(self, encoders: int = 1, **settings: object) -> None:
        self.encoders = encoders
        self._command = (*compose_command(), "--project-name", f"epd-test-{uuid.uuid4().hex[:8]}")
        port = free_port()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("EPD_") or key == "EPD_DOCKER_SOCKET"}
        self.settings = {f"EPD_{key.upper()}": str(value) for key, value in settings.items()}
        self._environment = clean | {"EPD_LANGUAGE_PORT": str(port)} | self.settings
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self._pictures = count()

    def compose(self, *arguments: str, timeout: float = 60) -> str:
        return run(*self._command, *arguments, timeout=timeout, environment=self._environment)

    def up(self) -> None:
        """Builds the images, starts the containers, and waits until they are healthy and know each other."""
        scale = ("--scale", f"encoder={self.encoders}")
        self.compose("up", "--detach", "--build", *scale, timeout=BUILD_TIMEOUT)
        self.wait_until_healthy()

    def containers(self, service: str) -> list[str]:
        """The ids of a service's containers, running or not."""
        return self.compose("ps", "--all", "--quiet", service).split()

    def container(self, service: str) -> str:
        """The id of the only container of a service."""
        [found] = self.containers(service)
        return found

    def healthy(self, service: str) -> bool:
        """Whether all containers of a service are."""
        return all(inspect(container, ".State.Health.Status") == "healthy" for container in self.containers(service))

    def encoders_ready(self) -> int:
        """How many encoders the language service says that it can ask; -1 while it does not answer."""
        try:
            answer = self.client.get("/ready")
        except httpx.HTTPError:
            return -1
        return int(answer.json().get("encoders_ready", -1))

    def wait_until_healthy(self) -> None:
        wait_for(lambda: self.healthy("encoder") and self.healthy("language"), UP_TIMEOUT, "health of both containers")
        wait_for(lambda: self.encoders_ready() == self.encoders, UP_TIMEOUT, "readiness for pictures")

    def new_picture(self) -> dict[str, Any]:
        """A request about a picture that was not there before."""
        return user(png(random_scene(random.Random(8)), seed=next(self._pictures)), "Describe the picture.")

    def ask(self, request: dict[str, Any]) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json=request)


@contextmanager
def running(pair: ComposedPair, request: pytest.FixtureRequest) -> Iterator[ComposedPair]:
    """``pair``, up inside the block and gone after it. Its logs are shown when it did not come up, or a test failed."""
    failed_before = request.session.testsfailed
    ready = False

    def show_logs() -> None:
        if not ready or request.session.testsfailed > failed_before:
            with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                print("\n" + pair.compose("logs", "--no-color"))

    with ExitStack() as ending:
        ending.callback(pair.client.close)
        ending.callback(pair.compose, "down", "--volumes", timeout=120)
        ending.callback(show_logs)
        pair.up()
        ready = True
        yield pair
