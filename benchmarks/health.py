"""``python -m benchmarks.health --url …``: latency of ``/health``, asked every 20 ms until standard input is closed.

A process of its own, so that it measures the server and not the load driver. Latency counts from the moment at which a request
was due: while the server stalls, the requests that it holds up count as late too. Several connections take turns, so that the
next request need not wait for the answer to the last one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from types import TracebackType
from urllib.parse import urlsplit

INTERVAL = 0.02  # seconds
TIMEOUT = 10.0  # seconds
CONNECTIONS = 8


def sample(url: str, stop: threading.Event, due: float) -> list[float]:
    """Seconds of each answer on one connection until ``stop``, from the time ``due`` on; an error counts as the timeout."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=TIMEOUT)
    latencies: list[float] = []
    while not stop.is_set():
        time.sleep(max(0.0, due - time.perf_counter()))
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            latencies.append(time.perf_counter() - due if answer.status == 200 else TIMEOUT)
        except (OSError, http.client.HTTPException):
            connection.close()
            latencies.append(TIMEOUT)
            due = time.perf_counter()
        due += CONNECTIONS * INTERVAL
    connection.close()
    return latencies


class HealthSampler:
    """Runs this module beside a load: a context manager whose ``latencies`` (seconds) are there after it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.latencies: list[float] = []

    def __enter__(self) -> HealthSampler:
        command = [sys.executable, "-m", "benchmarks.health", "--url", self._url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        out, _ = self._process.communicate(timeout=30)
        self.latencies = json.loads(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="base URL of the service")
    args = parser.parse_args()
    stop, latencies = threading.Event(), list[float]()
    begin = time.perf_counter()
    samplers = [
        threading.Thread(target=lambda due=begin + number * INTERVAL: latencies.extend(sample(args.url, stop, due)))
        for number in range(CONNECTIONS)
    ]
    for sampler in samplers:
        sampler.start()
    sys.stdin.read()
    stop.set()
    for sampler in samplers:
        sampler.join()
    print(json.dumps(latencies))


if __name__ == "__main__":
    main()
