"""``python -m benchmarks.api``: what the API takes by itself, without any model.

The language service as it is, but with an engine that answers at once (``benchmarks/stub.py``), under the load tester's
generator; the floor is a route of Starlette's that gives constant bytes to the same client in the same run. Then bodies with
one large picture, and how long the event loop stands still for them. ``--write PAGE`` puts the table into a page.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from benchmarks.generator import load
from benchmarks.health import HealthSampler
from benchmarks.load import percentile
from benchmarks.pages import report
from benchmarks.tables import table
from benchmarks.targets import ms
from services.loadtest.ports import free_port
from tests.fake_encoder import FakeEncoder
from tests.processes import DEMO_MODEL, wait_for

USERS = 16
TARGET = 500  # requests a second
BODIES = 20
SIZES = (13, 40)  # MB of a body; one item may have 32 MiB
GAP = 0.02  # seconds
HEALTH = 0.05  # seconds

TEXT = """\
`python -m benchmarks.api`: the language service with an engine that answers at once, 8 tokens each. Short texts, not streamed,
from 16 users without pauses, made by the load tester's generator; the floor is a Starlette route that gives constant bytes to
the same client. Services and client share two cores. Then 20 bodies after each other, each with one new picture in a data URL,
whose bytes go on to a stub of an encoder in another process: the longest time for which the event loop did not turn while all
of that happened, as seen by a task that looks each millisecond, and the processor time of all of the service's threads in such
a gap, which is what is left of it where no other program wants the cores."""


@contextlib.contextmanager
def server(port: int, *args: str, **settings: str) -> Iterator[psutil.Process]:
    """A server of ``benchmarks.stub`` in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EPD_")}
    command = [sys.executable, "-m", "benchmarks.stub", *args]
    process = subprocess.Popen(command, env=clean | {"EPD_PORT": str(port), "EPD_LOG_LEVEL": "warning"} | settings)

    def up() -> bool:
        assert process.poll() is None, "the server ended"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success
        return False

    try:
        wait_for(up, 90, "start of the server")
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def rates(port: int, service: psutil.Process, seconds: float) -> Iterator[tuple[str, ...]]:
    """Requests a second, and the floor's."""
    load(port, 1.0, users=USERS)  # what is only slow the first time
    before, began = sum(service.cpu_times()[:2]), time.perf_counter()
    found = load(port, seconds, users=USERS)
    cores = (sum(service.cpu_times()[:2]) - before) / (time.perf_counter() - began)
    bare = free_port()
    with server(bare, "--bare", str(bare)):
        floor = load(bare, seconds, users=USERS)
    met = "yes" if found.rate >= TARGET else "**no**"
    ratio = f"{found.rate / floor.rate:.2f} x"
    yield "short texts", f"{found.rate:.0f}/s", ratio, f"{cores:.2f} + {found.cpu:.2f}", f"≥ {TARGET}/s", met
    yield "floor: constant bytes", f"{floor.rate:.0f}/s", "1.00 x", f"… + {floor.cpu:.2f}", "", ""


def body_of(size: int) -> bytes:
    """A body of ``size`` MB, nearly all of it one picture that nobody has seen."""
    data = base64.b64encode(os.urandom(size * 10**6 * 3 // 4)).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [picture, {"type": "text", "text": "What is in the picture?"}]
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


def gaps(url: str, size: int) -> Iterator[tuple[str, ...]]:
    """What bodies of ``size`` MB do to the event loop, and to those who ask for health."""
    bodies = [body_of(size) for _ in range(BODIES)]
    found: list[tuple[float, float]] = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client, HealthSampler(url) as health:
        client.get("/benchmark/gap")
        time.sleep(0.5)
        for body in bodies:
            client.get("/benchmark/gap")
            answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
            answer.raise_for_status()
            found.append(client.get("/benchmark/gap").json())
    first = size == SIZES[0]
    longest, busiest = zip(*found, strict=True)
    for what, worst, limit in (
        (f"bodies of {size} MB: the loop stands still, longest", max(longest), GAP),
        ("… most processor time in such a gap", max(busiest), None),
        ("… `/health` meanwhile, p99", percentile(health.latencies, 0.99), HEALTH),
    ):
        target = met = ""
        if first and limit is not None:
            target, met = f"≤ {1000 * limit:.0f} ms", "yes" if worst <= limit else "**no**"
        yield what, ms(worst), "", "", target, met


def rows(seconds: float) -> Iterator[tuple[str, ...]]:
    """The table's rows."""
    port = free_port()
    with FakeEncoder() as encoder, server(port, EPD_ENCODERS=encoder.url, EPD_MODEL=str(DEMO_MODEL)) as service:
        yield from rates(port, service, seconds)
        for size in SIZES:
            yield from gaps(f"http://127.0.0.1:{port}", size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each load")
    parser.add_argument("--write", type=Path, help="page to write the table into, such as docs/performance.md")
    args = parser.parse_args()
    heads = ("what", "measured", "of the floor", "cores: service + client", "target", "met")
    report("The API by itself", TEXT, table(heads, list(rows(args.seconds))), args.write)


if __name__ == "__main__":
    main()
