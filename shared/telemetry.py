"""Logs, metrics and request ids. One registry a service, made by its app; one log line a failure."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import uuid
import warnings
from collections.abc import Sequence

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from structlog.contextvars import merge_contextvars
from structlog.typing import FilteringBoundLogger, Processor

from shared.errors import ClientError, EpdError, Unavailable

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def configure_logging(level: str, log_format: str) -> None:
    """Sends structlog's and the standard library's records to standard error, one line each."""
    shared: list[Processor] = [
        merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format == "json"
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                pad_event_to=0,
                # Without the values of variables, which may be pictures or secrets.
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        cache_logger_on_first_use=True,
    )
    # Received frames are viewed, never written to.
    warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
    # What PIL warns of is in the pictures of clients; Python keeps each different text for ever.
    warnings.filterwarnings("ignore", module=r"PIL\.")


def get_logger(name: str) -> FilteringBoundLogger:
    """A structured logger."""
    logger: FilteringBoundLogger = structlog.get_logger(name)
    return logger


def new_request_id(offered: str | None = None) -> str:
    """The caller's request id where it is sane, else a new one."""
    if offered and _REQUEST_ID.fullmatch(offered):
        return offered
    return f"req-{uuid.uuid4().hex}"


def log_failure(logger: FilteringBoundLogger, error: EpdError, cause: BaseException, *, probe: bool = False) -> None:
    """The one log line of a failed request; the request id is bound to the context. Those of probes are for debugging."""
    fields: dict[str, object] = {"code": error.code, "status": error.status, "param": error.param, "reason": error.message}
    if error.encoder is not None:
        fields |= {"encoder": error.encoder, "encoder_id": error.encoder_id}
    if probe:
        logger.debug("probe failed", **fields)
    elif isinstance(error, ClientError):
        logger.info("request refused", **fields)
    elif isinstance(error, Unavailable):
        logger.warning("request failed", **fields)
    else:
        logger.error("request failed", **fields, exc_info=cause)


class _Collected:
    """Metrics as they were read."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


class Metrics:
    """The metrics both services have, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self.counter(
            "epd_requests_total", "Finished requests by route and code (ok, or an error's).", "route", "code"
        )
        self.seconds = self.histogram("epd_request_seconds", "Time until a response was complete, by route.", "route")

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=_BUCKETS)

    async def exposition(self) -> bytes:
        """All of them in Prometheus' text format. They are read here, on the event loop, where what they are read from changes;
        written down in a thread, since those of a thousand encoders are many."""
        return await asyncio.to_thread(generate_latest, _Collected(list(self.registry.collect())))
