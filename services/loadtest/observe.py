"""What the deployment says of itself while it is loaded, and what it still holds afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Event, Thread

import httpx
from prometheus_client.parser import text_string_to_metric_families

from services.loadtest.deployment import Deployment
from services.loadtest.deployment.route import client
from services.loadtest.run import Leftover, Sample

_LOOK = 0.1

# Of the pair; and of other servers what stands for it.
_QUEUED = ("epd_waits", "epd_engine_waiting")
_QUEUED_ELSEWHERE = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_READY = "epd_encoders_ready"

LANGUAGE_HOLDS = {
    "epd_waits": "waits for embeddings",
    "epd_held_bytes": "bytes of embeddings held for requests",
    "epd_engine_running": "sequences that the engine computes",
    "epd_engine_waiting": "sequences that wait for the engine",
    "epd_encoder_in_flight": "items that encoders are asked for",
}
"""Gauges of the language service that are 0 when nobody asks it for anything, and what they count."""
ENCODER_HOLDS = {
    "epd_encoder_items_in_work": "items in work",
    "epd_encoder_queue_items": "items that wait for the tower",
}
"""The same of an encoder."""


class Observer:
    """Looks at ``/metrics`` of the language service ``every`` so many seconds, in a thread, from ``start`` to ``stop``.

    Servers that have no such route yield nothing. ``clock`` gives the seconds since the load began.
    """

    def __init__(self, deployment: Deployment, clock: Callable[[], float], every: float = 0.5) -> None:
        self.samples: list[Sample] = []
        """All so far, in order."""
        self._deployment = deployment
        self._clock = clock
        self._every = every
        self._http = client(timeout=2.0)
        self._over = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begins to look."""
        self._over.clear()
        self._thread = Thread(target=self._observe, name="loadtest-observer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks no more; returns when the last look is over."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def leftovers(self, timeout: float = 5.0) -> list[Leftover]:
        """What the services hold, once they hold nothing more or have had ``timeout`` seconds to let go of it: all figures that
        they tell, also those that are 0; none of servers that tell none of them."""
        deadline = time.monotonic() + timeout
        while True:
            held = self._held(self._deployment.url, "the language service", LANGUAGE_HOLDS)
            for name, url in self._deployment.encoder_urls().items():
                held += self._held(url, name, ENCODER_HOLDS)
            if not any(each.value for each in held) or time.monotonic() > deadline:
                return held
            time.sleep(_LOOK)

    def _observe(self) -> None:
        while not self._over.is_set():
            at = self._clock()
            found = self._gauges(self._deployment.url)
            if found:
                self.samples.append(Sample(at, _queued(found), found.get(_READY)))
            self._over.wait(max(0.0, at + self._every - self._clock()))

    def _held(self, url: str, whose: str, names: Mapping[str, str]) -> list[Leftover]:
        found = self._gauges(url)
        return [Leftover(f"{text} ({name} of {whose})", found[name]) for name, text in names.items() if name in found]

    def _gauges(self, url: str) -> dict[str, float]:
        """Gauges by name, summed over their labels; none where they cannot be had."""
        try:
            answer = self._http.get(f"{url}/metrics")
            if not answer.is_success:
                return {}
            return gauges(answer.text)
        except (httpx.HTTPError, ValueError):  # the server is down, or its route is something else
            return {}


def gauges(text: str) -> dict[str, float]:
    """The gauges of a page in Prometheus' format by name, each summed over its labels.

    Raises:
        ValueError: it is none.
    """
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.type == "gauge":
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _queued(found: Mapping[str, float]) -> float | None:
    for names in (_QUEUED, _QUEUED_ELSEWHERE):
        there = [found[name] for name in names if name in found]
        if there:
            return sum(there)
    return None
