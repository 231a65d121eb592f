"""``make serve``: one command brings the pair up, keeps it up, and takes it down."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest

from examples.scenes import png, random_scene
from tests.chats import user
from tests.processes import ROOT, free_port, wait_for


class Pair:
    """A supervised pair, run through the Makefile as a user would."""

    def __init__(self, folder: Path) -> None:
        self.encoder_port, self.language_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.language_port}"
        self.log = folder / "serve.log"
        self._pictures = count()
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("EPD_", "MAKE"))}
        ports = {"EPD_ENCODER_PORT": str(self.encoder_port), "EPD_LANGUAGE_PORT": str(self.language_port)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["make", "serve"], cwd=ROOT, env=clean | ports, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def pids(self, service: str) -> list[int]:
        """The processes of this pair's service, found by its port."""
        port = self.encoder_port if service == "encoder" else self.language_port
        found = []
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"services.{service}".encode() in command and str(port).encode() in command:
                found.append(int(entry.name))
        return found

    def ask(self) -> int:
        """The status of a request about a picture that was not there before."""
        body = user(png(random_scene(random.Random(1)), seed=next(self._pictures)), "Describe the picture.")
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=30, trust_env=False).status_code


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    try:
        wait_for(lambda: f"ready: {pair.url}" in pair.log.read_text(), 60, f"the word ready:\n{pair.log.read_text()}")
        yield pair
    finally:
        if pair.process.poll() is None:
            os.killpg(pair.process.pid, signal.SIGTERM)
            pair.process.wait(timeout=30)


def test_ready_means_that_a_picture_is_answered(pair: Pair) -> None:
    assert pair.ask() == 200


def test_a_dead_service_is_restarted_and_the_other_stays(pair: Pair) -> None:
    [encoder], [language] = pair.pids("encoder"), pair.pids("language")
    os.kill(encoder, signal.SIGKILL)
    wait_for(lambda: pair.pids("encoder") not in ([encoder], []), 20, "a new encoder")
    wait_for(lambda: pair.ask() == 200, 40, "service after the restart of the encoder")
    assert pair.pids("language") == [language]
    os.kill(language, signal.SIGKILL)
    wait_for(lambda: pair.pids("language") not in ([language], []), 20, "a new language service")
    assert len(pair.pids("encoder")) == 1


@pytest.mark.parametrize("how", ["SIGINT to the group, as Ctrl-C does", "SIGTERM to make"])
def test_one_signal_stops_everything(pair: Pair, how: str) -> None:
    if how.startswith("SIGINT"):
        os.killpg(pair.process.pid, signal.SIGINT)
    else:
        pair.process.terminate()
    pair.process.wait(timeout=30)
    wait_for(lambda: not pair.pids("encoder") and not pair.pids("language"), 20, "the end of both services")
