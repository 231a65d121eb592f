"""An encoder's load is read from what it tells Prometheus, and is that of the time since the last look."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from services.encoder.tally import Tally
from services.fleet.encoders import Gauges, Samples, samples_of
from services.fleet.policy import BUSY, ITEMS, WAIT, WAITING
from shared.telemetry import Metrics
from shared.tracing import NO_TRACES


class Encoder:
    """The metrics of an encoder, by its own classes."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.tally = Tally(self.metrics, NO_TRACES)
        self.items = self.metrics.gauge("epd_encoder_items_in_work", "")
        self.waiting = self.metrics.gauge("epd_encoder_queue_items", "")

    def samples(self) -> Samples:
        return samples_of(generate_latest(self.metrics.registry).decode())


def test_what_grows_is_told_by_its_growth() -> None:
    encoder, gauges = Encoder(), Gauges()
    encoder.tally.busy.inc(50)
    encoder.tally.times({"queue": 7.0})
    assert gauges.read(encoder.samples(), now=100.0) == {ITEMS: 0, WAITING: 0, WAIT: 0, BUSY: 0}
    encoder.items.set(5)
    encoder.waiting.set(3)
    encoder.tally.busy.inc(1)
    for waited in (0.2, 0.4):
        encoder.tally.times({"queue": waited, "tower": 9.0})
    assert gauges.read(encoder.samples(), now=104.0) == {ITEMS: 5, WAITING: 3, WAIT: pytest.approx(0.3), BUSY: 0.25}
    assert gauges.read(encoder.samples(), now=106.0) == {ITEMS: 5, WAITING: 3, WAIT: 0, BUSY: 0}


def test_a_long_batch_that_ends_now_is_no_more_than_all_of_the_time() -> None:
    encoder, gauges = Encoder(), Gauges()
    gauges.read(encoder.samples(), now=0.0)
    encoder.tally.busy.inc(30)
    assert gauges.read(encoder.samples(), now=2.0)[BUSY] == 1.0
