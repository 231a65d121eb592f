"""What is measured of each encoder, for as long as it is known."""

from __future__ import annotations

import contextlib

from services.language.embeddings.encoder import Encoder, State
from shared.errors import ERRORS
from shared.telemetry import Metrics


class EncoderMeasures:
    """Metrics with an encoder's URL among their labels."""

    def __init__(self, metrics: Metrics) -> None:
        self._attempts = metrics.counter(
            "epd_attempts_total", "Shares of requests that encoders were asked for, by outcome.", "encoder", "code"
        )
        self._seconds = metrics.histogram("epd_attempt_seconds", "Time of one share of a request at an encoder.", "encoder")
        self._states = metrics.gauge("epd_encoder_ready", "Whether an encoder can be asked now.", "encoder")
        self._loads = metrics.gauge("epd_encoder_in_flight", "Items that an encoder was asked for.", "encoder")

    def add(self, encoder: Encoder) -> None:
        """An encoder is known from now on."""
        self._states.labels(encoder.url).set_function(lambda: encoder.state is State.READY)
        self._loads.labels(encoder.url).set_function(lambda: encoder.load)

    def attempt(self, encoder: Encoder, code: str, seconds: float) -> None:
        """A share of a request ended: with ``ok``, or the code of an error."""
        self._attempts.labels(encoder.url, code).inc()
        self._seconds.labels(encoder.url).observe(seconds)

    def remove(self, encoder: Encoder) -> None:
        """An encoder is forgotten, and with it what was measured of it."""
        self._states.remove(encoder.url)
        self._loads.remove(encoder.url)
        with contextlib.suppress(KeyError):
            self._seconds.remove(encoder.url)
        for code in ("ok", *ERRORS):
            with contextlib.suppress(KeyError):
                self._attempts.remove(encoder.url, code)
