"""The pair as ``docker compose up`` brings it up, before and after its encoder is killed."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from examples.scenes import random_exam
from tests.chats import MODEL, exam_parts, user
from tests.containers.composed import BUILD_TIMEOUT, UP_TIMEOUT, ComposedPair, inspect, run, running
from tests.processes import wait_for

MAX_IMAGE_BYTES = 2_000_000_000
EXAMS = 3

# The first build installs torch.
pytestmark = [pytest.mark.containers, pytest.mark.timeout(BUILD_TIMEOUT + UP_TIMEOUT + 120)]


@pytest.fixture(scope="module")
def composed(request: pytest.FixtureRequest) -> Iterator[ComposedPair]:
    """One pair for all tests here; each leaves it healthy."""
    with running(ComposedPair(), request) as pair:
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


def test_a_picture_is_refused_for_what_it_is_until_an_encoder_has_registered(composed: ComposedPair) -> None:
    other = ComposedPair()
    try:
        other.compose("up", "--detach", "--no-build", "language", timeout=120)
        wait_for(lambda: other.healthy("language") and other.encoders_ready() == 0, UP_TIMEOUT, "health of the language")
        refusal = other.ask(other.new_picture())
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "encoder_unavailable")
        assert int(refusal.headers["retry-after"]) > 0
        assert other.ask(user("Say yes.")).status_code == 200
        other.compose("up", "--detach", "--no-build", timeout=120)
        other.wait_until_healthy()
        assert other.ask(other.new_picture()).status_code == 200
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
