"""After ten thousand failed requests over all faults, nothing of them is left, and memory is flat."""

from __future__ import annotations

import asyncio
import os
import random
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.failures import until_served
from tests.chaos.fleet import Fleet, fleet, metrics
from tests.load import Case, Outcome, ask_all, check
from tests.processes import Service, wait_for

FAILED = 10_000
CLIENTS = 64
MOST_GROWTH = 20 * 2**20

# Those that only end by a deadline get a short one, so that ten thousand of them end today.
SHORT = {"x-request-timeout": "0.2"}
FAULTS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"kind": "error"}, {}),
    ({"kind": "overload"}, {}),
    ({"kind": "corrupt"}, {}),
    ({"kind": "corrupt", "frame": 0, "bits": 4}, {}),
    ({"kind": "wrong_shape"}, {}),
    ({"kind": "wrong_tokens"}, {}),
    ({"kind": "wrong_dtype"}, {}),
    ({"kind": "wrong_fingerprint"}, {}),
    ({"kind": "nan"}, {}),
    ({"kind": "drop"}, {}),
    ({"kind": "partial", "k": 1}, {}),
    ({"kind": "late", "seconds": 0.3}, {}),
    ({"kind": "delay", "seconds": 30}, SHORT),
    ({"kind": "hang", "at": "publish"}, SHORT),
    ({"kind": "slow_drip", "seconds": 30}, SHORT),
]
CODES = {
    "encoder_failed",
    "encoder_unavailable",
    "encoder_lost",
    "encoder_overloaded",
    "embedding_timeout",
    "embedding_incomplete",
    "embedding_corrupt",
    "embedding_incompatible",
}


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def processes(services: Fleet) -> dict[str, int]:
    """The three processes of a pair, by name."""
    language = services.language.process.pid
    return {"encoder": services.encoders[0].process.pid, "language": language, "engine": children(language)[0]}


def idle(service: Service, *names: str) -> bool:
    found = metrics(service)
    return all(found[name] == 0 for name in names)


def until_nothing_is_left(services: Fleet) -> None:
    wait_for(
        lambda: idle(services.language, "epd_waits", "epd_held_bytes", "epd_engine_running", "epd_engine_waiting"),
        10,
        "an idle language service",
    )
    wait_for(
        lambda: idle(services.encoders[0], "epd_encoder_items_in_work", "epd_encoder_bytes_in_work", "epd_encoder_queue_items"),
        10,
        "an idle encoder",
    )


def tasks(services: Fleet) -> tuple[float, float]:
    return tuple(metrics(service)["epd_event_loop_tasks"] for service in (services.language, services.encoders[0]))  # type: ignore[return-value]


def fail(services: Fleet, wanted: list[Case], number: int) -> list[Outcome]:
    """``number`` requests, spread over all faults."""
    outcomes: list[Outcome] = []
    each = -(-number // len(FAULTS))
    for fault, headers in FAULTS:
        services.set_faults(fault)
        outcomes += asyncio.run(ask_all(services.language.url, list(islice(cycle(wanted), each)), CLIENTS, headers))
    services.set_faults()
    until_nothing_is_left(services)
    return outcomes


@pytest.mark.timeout(400)
def test_ten_thousand_failures_leave_nothing(tmp_path: Path, doubles: list[Case]) -> None:
    # Never a repaired circuit in the way: every request is to reach the encoder and fail there.
    options = {"arrival_grace": 0.1, "breaker_failures": 10**9, "liveness_timeout": 1.0, "log_level": "warning"}
    with fleet(tmp_path, encoder={"faults_enabled": True, "log_level": "error"}, language=options) as services:
        wanted = list(doubles)
        random.Random(1).shuffle(wanted)
        fail(services, wanted, 4000)  # what is allocated once is allocated by then
        until_served(services, doubles[0])  # a probe closes the circuit that the hanging ones have opened
        pids = processes(services)
        before = {name: (resident(pid), descriptors(pid)) for name, pid in pids.items()}
        tasks_before = tasks(services)

        outcomes = fail(services, wanted, FAILED)
        check(outcomes, len(outcomes), CODES)
        assert sum(outcome.status == 503 for outcome in outcomes) >= 0.99 * FAILED
        assert {outcome.code for outcome in outcomes} >= CODES - {"encoder_unavailable", "encoder_lost"}

        services.until_ready()
        wait_for(lambda: all(now <= then + 2 for now, then in zip(tasks(services), tasks_before, strict=True)), 10, "few tasks")
        for name, pid in pids.items():
            memory, files = before[name]
            print(f"{name}: memory {(resident(pid) - memory) / 2**20:+.1f} MB, descriptors {descriptors(pid) - files:+d}")
        for name, pid in pids.items():
            memory, files = before[name]
            assert resident(pid) - memory < MOST_GROWTH, name
            # Connections that are kept for the next request come and go.
            assert descriptors(pid) - files <= CLIENTS, name
        # And it still works, once a probe has closed the circuit that the hanging ones had opened.
        until_served(services, doubles[0])
        served = asyncio.run(ask_all(services.language.url, doubles[:20], 4))
        check(served, 20, set())
        assert {outcome.status for outcome in served} == {200}
