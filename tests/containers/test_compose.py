"""The pair as ``docker compose up`` brings it up, before and after its encoder is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import httpx
import openai
import pytest

from examples.scenes import png, random_exam, random_scene
from tests.chats import MODEL, exam_parts, user
from tests.processes import ROOT, free_port, wait_for

BUILD_TIMEOUT = 1500
UP_TIMEOUT = 180
MAX_IMAGE_BYTES = 2_000_000_000
EXAMS = 3

# The first build installs torch.
pytestmark = [pytest.mark.containers, pytest.mark.timeout(BUILD_TIMEOUT + UP_TIMEOUT + 120)]


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
    """A project of its own name, so that it meets no other, and a client of its language service."""

    def __init__(self) -> None:
        self._command = (*compose_command(), "--project-name", f"epd-test-{uuid.uuid4().hex[:8]}")
        port = free_port()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("EPD_")}
        self._environment = clean | {"EPD_LANGUAGE_PORT": str(port)}
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self._pictures = count()

    def compose(self, *arguments: str, timeout: float = 60) -> str:
        return run(*self._command, *arguments, timeout=timeout, environment=self._environment)

    def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        return self.compose("ps", "--all", "--quiet", service)

    def healthy(self, service: str) -> bool:
        return inspect(self.container(service), ".State.Health.Status") == "healthy"

    def encoders_ready(self) -> int:
        """How many encoders the language service says that it can ask; -1 while it does not answer."""
        try:
            answer = self.client.get("/ready")
        except httpx.HTTPError:
            return -1
        return int(answer.json().get("encoders_ready", -1))

    def wait_until_healthy(self) -> None:
        wait_for(lambda: self.healthy("encoder") and self.healthy("language"), UP_TIMEOUT, "health of both containers")
        wait_for(lambda: self.encoders_ready() >= 1, UP_TIMEOUT, "readiness for pictures")

    def new_picture(self) -> dict[str, Any]:
        """A request about a picture that was not there before."""
        return user(png(random_scene(random.Random(8)), seed=next(self._pictures)), "Describe the picture.")

    def ask(self, request: dict[str, Any]) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json=request)


@pytest.fixture(scope="module")
def composed(request: pytest.FixtureRequest) -> Iterator[ComposedPair]:
    """One pair for all tests here; each leaves it healthy. Its logs are shown when one of them failed."""
    pair = ComposedPair()
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
        pair.compose("up", "--detach", "--build", timeout=BUILD_TIMEOUT)
        pair.wait_until_healthy()
        ready = True
        yield pair


def easy_exams() -> list[tuple[dict[str, Any], str]]:
    """Requests about one picture each, and the right answers."""
    rng = random.Random(8)
    exams = [random_exam(rng, pictures=1) for _ in range(EXAMS)]
    return [(user(*exam_parts(exam, seed)), exam.question.answer) for seed, exam in enumerate(exams)]


def said(events: httpx.Response) -> str:
    """The text of a streamed answer."""
    lines = [line.removeprefix("data: ") for line in events.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("number", range(EXAMS))
def test_a_picture_is_answered_rightly_whole_and_streamed(composed: ComposedPair, number: int) -> None:
    body, answer = easy_exams()[number]
    whole = composed.ask(body)
    streamed = composed.ask({**body, "stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200)
    assert whole.json()["choices"][0]["message"]["content"] == said(streamed) == answer


def test_the_openai_client_gets_the_right_answer(composed: ComposedPair) -> None:
    body, answer = easy_exams()[0]
    with openai.OpenAI(base_url=f"{composed.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(model=MODEL, messages=body["messages"], temperature=0)
        chunks = client.chat.completions.create(model=MODEL, messages=body["messages"], temperature=0, stream=True)
        streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert whole.choices[0].message.content == streamed == answer


def assert_refused_at_once(composed: ComposedPair) -> None:
    """A new picture is refused for want of an encoder within a second, whole and streamed, while text is answered, and so is a
    picture that was answered before."""
    for stream in (False, True):
        began = time.monotonic()
        refusal = composed.ask({**composed.new_picture(), "stream": stream})
        seconds = time.monotonic() - began
        assert refusal.status_code == 503, refusal.text
        # A container's network can go before its last packets do: then silence tells, and not a broken connection.
        lost = refusal.json()["error"]["code"] == "encoder_lost"
        assert lost or refusal.json()["error"]["code"] in ("encoder_failed", "encoder_unavailable")
        assert int(refusal.headers["retry-after"]) > 0
        assert seconds < (2.5 if lost else 1), refusal.text
    assert composed.ask(user("Say yes.")).status_code == 200
    known, answer = easy_exams()[0]
    assert composed.ask(known).json()["choices"][0]["message"]["content"] == answer


def test_a_killed_encoder_is_told_at_once_and_one_that_is_back_is_used(composed: ComposedPair) -> None:
    encoder, language = composed.container("encoder"), composed.container("language")
    started = inspect(language, ".State.StartedAt")
    assert composed.ask(easy_exams()[0][0]).status_code == 200
    run("docker", "kill", encoder)
    try:
        assert_refused_at_once(composed)
        wait_for(lambda: composed.encoders_ready() == 0, 10, "the loss of the encoder")
        assert_refused_at_once(composed)
    finally:
        run("docker", "start", encoder)
        composed.wait_until_healthy()
    assert composed.ask(composed.new_picture()).status_code == 200
    assert inspect(language, ".State.StartedAt") == started


@pytest.mark.parametrize("service", ["encoder", "language"])
def test_a_container_runs_without_privileges_from_a_small_image(composed: ComposedPair, service: str) -> None:
    container = composed.container(service)
    assert int(run("docker", "exec", container, "id", "-u")) != 0
    assert int(inspect(inspect(container, ".Image"), ".Size")) <= MAX_IMAGE_BYTES


def secret_of(container: str) -> str:
    return run("docker", "exec", container, "cat", "/secrets/epd")


# Begins a greeting at the data port, and prints the mechanism that the answer names.
GREET = r"""
import socket
with socket.create_connection(("language", 5557), timeout=5) as data:
    data.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01")
    print(data.recv(32, socket.MSG_WAITALL)[12:].rstrip(b"\0").decode())
"""


def test_the_data_port_is_encrypted_and_control_calls_need_the_token(composed: ComposedPair) -> None:
    encoder = composed.container("encoder")
    assert run("docker", "exec", encoder, "python", "-c", GREET) == "CURVE"
    refused = composed.client.post("/v1/encoders", json={})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "authorization")


def test_both_have_one_secret_which_nobody_else_can_read_and_which_stays(composed: ComposedPair) -> None:
    containers = [composed.container(service) for service in ("encoder", "language")]
    [secret] = {secret_of(container) for container in containers}
    assert len(bytes.fromhex(secret)) == 32
    for container in containers:
        assert run("docker", "exec", container, "stat", "--format", "%a %u", "/secrets/epd") == "600 10001"
        assert run("docker", "exec", container, "stat", "--format", "%a %u", "/secrets") == "700 10001"
    composed.compose("restart", timeout=120)
    composed.wait_until_healthy()
    assert {secret_of(container) for container in containers} == {secret}
    assert composed.ask(composed.new_picture()).status_code == 200


def test_another_project_has_another_secret(composed: ComposedPair) -> None:
    other = ComposedPair()
    try:
        other.compose("up", "--detach", "--no-build", "encoder", timeout=120)
        wait_for(lambda: other.healthy("encoder"), UP_TIMEOUT, "health of another project's encoder")
        assert secret_of(other.container("encoder")) != secret_of(composed.container("encoder"))
    finally:
        other.client.close()
        other.compose("down", "--volumes", timeout=120)


def test_an_encoder_alone_without_a_secret_does_not_start_and_says_why(composed: ComposedPair) -> None:
    image = inspect(composed.container("encoder"), ".Image")
    done = subprocess.run(["docker", "run", "--rm", image], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("not started: EPD_HOST is 0.0.0.0")
    assert "EPD_SECRET_FILE" in line
