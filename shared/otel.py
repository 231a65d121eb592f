"""Spans as OpenTelemetry's. Needs the extra ``otel``; nothing but ``shared/tracing.py`` imports this."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextvars import Token
from importlib.metadata import version
from typing import Self

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.errors import EpdError
from shared.tracing import Kind, Span, Tracer, Value

_W3C = TraceContextTextMapPropagator()
_KINDS = {"internal": trace.SpanKind.INTERNAL, "server": trace.SpanKind.SERVER, "client": trace.SpanKind.CLIENT}

# What the end of a service has time for; spans that a slow or dead collector did not take by then are lost.
_SECONDS_TO_CLOSE = 1.0


def exporting_provider(service: str) -> TracerProvider:
    """Sends spans by OTLP over HTTP, in batches, from a thread of its own. What does not fit into its queue is dropped, so that
    no request ever waits for a collector.

    Endpoint, headers, sampler, sizes and resource are what the standard ``OTEL_`` variables say.
    """
    named = Resource.create({"service.name": service, "service.version": version("epd-pair")})
    resource = named.merge(OTELResourceDetector().detect())  # again, since what the environment says goes first
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class OtelTracer(Tracer):
    """Begins spans of a provider, which it owns."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("epd-pair", version("epd-pair"))

    def span(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        leaf: bool = False,
        caller: Mapping[str, str] | None = None,
        **attributes: Value,
    ) -> Span:
        parent = None if caller is None else _W3C.extract(caller)
        return OtelSpan(self._tracer.start_span(name, parent, _KINDS[kind], _named(attributes)), leaf)

    async def close(self) -> None:
        # The exporter takes all the time that it was given for a call; the end of the process does not wait for that.
        closing = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _SECONDS_TO_CLOSE)


class OtelSpan(Span):
    """One span; inside it, it is the current one, except a leaf."""

    def __init__(self, span: trace.Span, leaf: bool) -> None:
        self._span = span
        self._leaf = leaf
        self._token: Token[context.Context] | None = None

    def __enter__(self) -> Self:
        if not self._leaf:
            self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if self._token is not None:
            context.detach(self._token)
        if isinstance(error, Exception):
            self.fail(error.code if isinstance(error, EpdError) else "internal_error")
        elif error is not None:
            # Cancelled, which is no failure of its own: whoever cancelled it knows why.
            self.set(code="cancelled")
        self._span.end()

    def set(self, **attributes: Value) -> None:
        self._span.set_attributes(_named(attributes))

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def fail(self, code: str) -> None:
        self.set(code=code)
        self._span.set_status(trace.StatusCode.ERROR, code)

    def headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        _W3C.inject(found, trace.set_span_in_context(self._span))
        return found

    def log_fields(self) -> dict[str, str]:
        if not self._span.is_recording():
            return {}
        return {"trace_id": trace.format_trace_id(self._span.get_span_context().trace_id)}


def _named(attributes: Mapping[str, Value]) -> dict[str, str | bool | int | float]:
    return {name if "." in name else f"epd.{name}": value for name, value in attributes.items() if value is not None}
