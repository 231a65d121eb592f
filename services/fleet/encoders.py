"""An encoder service as a replica of Ray Serve. Language services call it directly, as they do everywhere."""

from __future__ import annotations

import asyncio
import time

from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from services.encoder.app import create_app
from services.encoder.discovery import Remembered, Together, languages_of
from services.encoder.settings import EncoderSettings
from services.fleet.directory import NamedDirectory
from services.fleet.listener import Listener, acquainted, bound_to, url_of
from services.fleet.options import FleetOptions
from services.fleet.place import here, reached_at, settings_at
from services.fleet.policy import BUSY, ITEMS, WAIT, WAITING
from shared.lifecycle import prepare

Samples = dict[tuple[str, str | None], float]
"""Values by the metric's name and the stage that they are of."""


class EncoderReplica:
    """Starts the encoder, tells Serve how it is and how much it has to do, and drains it when Serve lets it go."""

    async def __init__(self, options: FleetOptions) -> None:  # type: ignore[misc]  # Serve awaits it
        part = options.encoders
        place = await asyncio.to_thread(here, part.needs.num_cpus)
        settings = settings_at(place, EncoderSettings, options.given(part))
        bound = bound_to(settings.host, settings.port if "port" in settings.model_fields_set else 0)
        url = settings.advertise_url or url_of(reached_at(place, settings.host), bound)
        settings = settings.model_copy(update={"port": bound.getsockname()[1], "advertise_url": url})
        prepare(settings)
        application = serve.get_replica_context().app_name
        directory = Remembered(NamedDirectory(application), f"directory of {application}")
        languages = Together([directory, languages_of(settings.announce_targets())])
        self._timeout = part.health_check_timeout_s
        self._gauges = Gauges()
        self._listener = Listener(create_app(settings, languages), bound)
        await self._listener.start()

        async def met() -> bool:
            there = await languages.urls()
            return bool(there) and (await self._samples())["epd_encoder_subscribers", None] >= len(there)

        await acquainted(met, part.acquaintance_s, "language services")

    async def check_health(self) -> None:
        """Raises httpx.HTTPError where the encoder does not answer, or its tower hangs."""
        await self._listener.get("/ready", self._timeout)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What ``EncoderPolicy`` goes by."""
        return self._gauges.read(await self._samples(), time.monotonic())

    async def __del__(self) -> None:
        await self._listener.stop()

    async def _samples(self) -> Samples:
        return samples_of((await self._listener.get("/metrics", self._timeout)).text)


def samples_of(exposed: str) -> Samples:
    """What Prometheus would read."""
    return {
        (sample.name, sample.labels.get("stage")): sample.value
        for family in text_string_to_metric_families(exposed)
        for sample in family.samples
    }


class Gauges:
    """An encoder's load, from what it tells Prometheus: of what only grows, the growth since the last look."""

    def __init__(self) -> None:
        self._before: tuple[float, float, float, float] | None = None

    def read(self, samples: Samples, now: float) -> dict[str, float]:
        """The load by the policy's names. ``now`` is in seconds of any clock."""
        busy = samples["epd_encoder_busy_seconds_total", None]
        waited = samples.get(("epd_encoder_stage_seconds_sum", "queue"), 0.0)
        items = samples.get(("epd_encoder_stage_seconds_count", "queue"), 0.0)
        before = self._before or (now, busy, waited, items)
        self._before = (now, busy, waited, items)
        seconds, computed, waiting, counted = (after - then for after, then in zip(self._before, before, strict=True))
        return {
            ITEMS: samples["epd_encoder_items_in_work", None],
            WAITING: samples["epd_encoder_queue_items", None],
            WAIT: waiting / counted if counted > 0 else 0.0,
            # A batch counts when it ends, so that more than all of the time may seem to have been computed.
            BUSY: min(1.0, computed / seconds) if seconds > 0 else 0.0,
        }
