"""Runs of Schemathesis against a real pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import zmq

from tests.openapi.hooks import INFO, SINK
from tests.processes import ROOT, Service

KEY = "a-key-for-schemathesis"

CONFIG = """
hooks = "tests.openapi.hooks"
continue-on-failure = true
request-timeout = 30.0
warnings = false

[cache]
enabled = false

[generation]
max-examples = {examples}
database = "none"

[auth.openapi.key]
bearer = "{key}"

[checks]
# Limits that no schema can say are answered with 400; and what is wrong but harmless, such as `true` for 1, is taken.
positive_data_acceptance.enabled = false
negative_data_rejection.enabled = false
# Of a path with several methods, the framework names those of one route.
allow_header_conformance.enabled = false
# 503 is what the contract says for what cannot be done now; 500 is a bug.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]

[[operations]]
# Without a key nobody is told which methods it has, but encoders register without one.
include-path = "/v1/encoders"
checks.unsupported_method.enabled = false
"""


_OPEN: dict[str, Any] = {"faults_enabled": True, "plain_seam": True}


@dataclass(frozen=True)
class Run:
    """What came of one run. ``accepted`` counts, by operation, the valid requests that were answered with success."""

    cases: int
    accepted: dict[str, int]
    failures: list[str]
    log: str


def run(service: Service, folder: Path, examples: int, thorough: bool) -> Run:
    """Gives ``service`` what its OpenAPI document says: its own examples, up to ``examples`` random requests an operation, and
    where it is to be ``thorough`` each value and each violation that the schemas name."""
    folder.mkdir(parents=True, exist_ok=True)
    config, report = folder / "schemathesis.toml", folder / "report.json"
    config.write_text(CONFIG.format(examples=examples, key=KEY))
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("st")), "--no-color", "--config-file", str(config), "run"),
            *(f"{service.url}/openapi.json", "--seed", "1"),
            *("--phases", "examples,coverage,fuzzing" if thorough else "examples,fuzzing"),
            *("--report", "json", "--report-json-path", str(report)),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    told = json.loads(report.read_text())
    return Run(
        cases=told["test_cases"]["generated"],
        accepted={name: sum(each["accepted"] for each in phases.values()) for name, phases in told["valid_rates"].items()},
        failures=[_line(each) for each in told["failures"] + told["errors"]],
        log=done.stdout + done.stderr,
    )


def _line(failure: dict[str, Any]) -> str:
    return f"{failure.get('title')}: {failure.get('operations') or failure}"


@contextmanager
def pair_to_fuzz(folder: Path) -> Iterator[tuple[Service, Service]]:
    """An encoder and a language service, with faults enabled, an API key, and encoders that may register, and a place that
    embeddings may be sent to."""
    context = zmq.Context()
    sink = context.socket(zmq.PULL)
    os.environ[SINK] = f"tcp://127.0.0.1:{sink.bind_to_random_port('tcp://127.0.0.1')}"
    try:
        with (
            Service("encoder", folder, **_OPEN).start(wait=False) as encoder,
            Service("language", folder, encoders=encoder.url, api_key=KEY, **_OPEN).start(wait=False) as language,
        ):
            language.wait_until_ready(encoders=1)
            os.environ[INFO] = httpx.get(f"{encoder.url}/v1/info", trust_env=False).text
            yield encoder, language
    finally:
        for name in (SINK, INFO):
            os.environ.pop(name, None)
        context.destroy(linger=0)
