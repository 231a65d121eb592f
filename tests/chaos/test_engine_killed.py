"""The engine's process dies by ``kill -9``: its requests end with an error, the service says so, and is back by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx

from examples.scenes import TALK
from tests.chats import user
from tests.processes import Service, wait_for


def engine_of(language: Service) -> int:
    """The process id of a language service's engine."""
    found = subprocess.run(["pgrep", "-P", str(language.process.pid), "-f", "engine.(torch|vllm).worker"], capture_output=True)
    return int(found.stdout or 0)


def test_a_dead_engine_is_told_and_replaced(tmp_path: Path) -> None:
    with Service("language", tmp_path, encoders="").start() as language:
        check_a_death(language, engine_of)


def check_a_death(language: Service, victim: Callable[[Service], int]) -> None:
    """Kills the process that ``victim`` finds, in the middle of an answer; returns when the service answers again."""
    with httpx.Client(base_url=language.url, timeout=30, trust_env=False) as client:
        engine = victim(language)
        assert engine
        long = user("Hello!", stream=True, max_tokens=2000, ignore_eos=True)
        with client.stream("POST", "/v1/chat/completions", json=long) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(engine, signal.SIGKILL)
            last = [line for line in lines if line][-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "internal_error"
        assert "engine" in error["message"]
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        refused = client.post("/v1/chat/completions", json=user("Hello!"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_overloaded")
        assert refused.headers["retry-after"]
        language.wait_until_ready()
        assert victim(language) not in (0, engine)
        answer = client.post("/v1/chat/completions", json=user("Hello!"))
        assert answer.json()["choices"][0]["message"]["content"] == TALK["Hello!"]


def test_the_engine_does_not_outlive_a_killed_service(tmp_path: Path) -> None:
    with Service("language", tmp_path, encoders="").start() as language:
        engine = engine_of(language)
        language.kill()
        wait_for(
            lambda: not Path(f"/proc/{engine}/cmdline").exists() or not Path(f"/proc/{engine}/cmdline").read_bytes(),
            5,
            "its end",
        )
