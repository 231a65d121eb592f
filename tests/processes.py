"""Real service processes for tests: started on ports that the system chooses, waited for, and always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import psutil

from services.loadtest.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "examples" / "demo_model"
START_TIMEOUT = 600.0
"""Seconds. What ends instead of getting ready is noticed at once; vLLM takes a multiple of the other engine's time."""

UNCACHED: dict[str, Any] = {"embedding_cache_bytes": 0, "media_cache_bytes": 0}
"""Settings of either service by which a picture that comes again takes the same way as the first time."""

LANGUAGE_SETTINGS = "EPD_TESTED_LANGUAGE"
"""A variable of the tests': a JSON object of settings that every language service has where a test says nothing else. By it the
same tests are about another engine."""

T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout: float, what: str) -> T:
    """The first true value of ``condition``, asked again and again until ``timeout`` seconds are over."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout:g} s")
        time.sleep(0.02)


class Service:
    """One service process. ``settings`` become ``EPD_`` variables; the log goes to a file that failures can show."""

    def __init__(self, name: str, folder: Path, port: int | None = None, **settings: object) -> None:
        self.name = name
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{name}-{self.port}.log"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("EPD_")}
        usual = json.loads(os.environ.get(LANGUAGE_SETTINGS, "{}")) if name == "language" else {}
        given = {f"EPD_{key.upper()}": str(value) for key, value in (usual | settings).items()}
        self._environment = clean | {"EPD_MODEL": str(DEMO_MODEL)} | given
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> Service:
        """Starts the process and, unless told otherwise, waits until it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"services.{self.name}", "--port", str(self.port)],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if wait:
            self.wait_until_ready()
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def wait_until_ready(self, encoders: int = 0) -> None:
        """Returns when ``/ready`` answers 200, with at least ``encoders`` encoders where this is a language service."""

        def ready() -> bool:
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log.read_text()}"
            try:
                answer = httpx.get(f"{self.url}/ready", timeout=2, trust_env=False)
            except httpx.HTTPError:
                return False
            return answer.status_code == 200 and answer.json().get("encoders_ready", encoders) >= encoders

        wait_for(ready, START_TIMEOUT, f"readiness of {self.name}")

    def kill(self) -> None:
        """``kill -9``, and waits until the process is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def __enter__(self) -> Service:
        return self if self._process is not None else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()


def decoding_workers() -> list[psutil.Process]:
    """Processes that this one keeps for decoding, or is decoding by."""
    return [child for child in psutil.Process().children() if "services.encoder.sandbox" in child.cmdline()]
