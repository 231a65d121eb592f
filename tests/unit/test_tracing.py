"""Spans: nothing without the extra or the setting; with them, parents, failures, and a collector that holds up nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI, Request
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from shared.errors import EncoderUnavailable, InvalidMedia
from shared.http import install, span_of
from shared.lifecycle import Drain
from shared.otel import OtelTracer, exporting_provider
from shared.telemetry import Metrics
from shared.tracing import NO_TRACES, Tracer, tracer_of
from tests.processes import ROOT

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


class Traces:
    """A tracer whose spans stay in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False, **options)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = OtelTracer(provider)

    def __getitem__(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self.exporter.get_finished_spans() if span.name == name)
        return span

    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def parent_of(self, name: str) -> str | None:
        parent = self[name].parent
        return next((span.name for span in self.exporter.get_finished_spans() if parent and span.context == parent), None)


@pytest.fixture
def traces() -> Traces:
    return Traces()


# ------------------------------------------------------------------------------------------------------------- without


def test_without_the_setting_nothing_is_traced_or_said() -> None:
    assert tracer_of(False, "epd-encoder") is NO_TRACES
    with NO_TRACES.span("a", kind="server", caller={"traceparent": TRACEPARENT}, items=1) as span:
        span.set(code="ok")
        span.event("now")
        span.fail("internal_error")
        assert (span.headers(), span.log_fields()) == ({}, {})


WITHOUT_THE_EXTRA = """
import sys
sys.modules["opentelemetry.sdk"] = None  # importing it fails

from services.encoder import app as encoder
from services.language import app as language
from services.encoder.settings import EncoderSettings
from services.language.settings import LanguageSettings

for create, settings in ((encoder.create_app, EncoderSettings), (language.create_app, LanguageSettings)):
    create(settings())
    try:
        create(settings(tracing=True))
    except RuntimeError as error:
        print(error)
"""


def test_without_the_extra_a_service_is_made_unless_traces_are_wanted() -> None:
    made = subprocess.run([sys.executable, "-c", WITHOUT_THE_EXTRA], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    refusals = made.stdout.splitlines()
    assert len(refusals) == 2
    assert all(refusal.endswith("pip install 'epd-pair[otel]'") for refusal in refusals)


# ------------------------------------------------------------------------------------------------ parents and outcomes


async def test_a_span_is_the_child_of_the_one_around_it_also_in_other_tasks_and_threads(traces: Traces) -> None:
    def in_a_thread() -> None:
        with traces.tracer.span("in a thread"):
            pass

    async def in_a_task() -> None:
        with traces.tracer.span("in a task"):
            await asyncio.to_thread(in_a_thread)

    with traces.tracer.span("outer"):
        task = asyncio.create_task(in_a_task())
        with traces.tracer.span("inner", items=2, left_out=None):
            await task
    with traces.tracer.span("next"):
        pass
    parents = {"outer": None, "inner": "outer", "in a task": "outer", "in a thread": "in a task", "next": None}
    assert {name: traces.parent_of(name) for name in parents} == parents
    assert dict(traces["inner"].attributes or {}) == {"epd.items": 2}


async def test_a_leaf_may_be_left_by_another_task_and_has_no_children(traces: Traces) -> None:
    async def count() -> AsyncIterator[int]:
        with traces.tracer.span("leaf", leaf=True) as span:
            for number in range(3):
                span.event("number")
                with traces.tracer.span(f"beside {number}"):
                    pass
                yield number

    async def rest(numbers: AsyncIterator[int]) -> list[int]:
        return [number async for number in numbers]

    with traces.tracer.span("outer"):
        numbers = count()
        assert await anext(numbers) == 0
    assert await asyncio.create_task(rest(numbers)) == [1, 2]
    assert [traces.parent_of(name) for name in ("leaf", "beside 0", "beside 1")] == ["outer", "outer", None]
    assert [event.name for event in traces["leaf"].events] == ["number"] * 3
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(
    ("error", "code", "failed"),
    [
        (InvalidMedia("broken"), "invalid_media", True),
        (ZeroDivisionError(), "internal_error", True),
        (asyncio.CancelledError(), "cancelled", False),
        (GeneratorExit(), "cancelled", False),
    ],
)
def test_what_leaves_a_span_is_its_failure(traces: Traces, error: BaseException, code: str, failed: bool) -> None:
    with pytest.raises(type(error)), traces.tracer.span("fails"):
        raise error
    span = traces["fails"]
    assert (span.attributes or {})["epd.code"] == code
    assert (span.status.is_ok, span.status.description) == (not failed, code if failed else None)
    assert trace.get_current_span() is trace.INVALID_SPAN


# ----------------------------------------------------------------------------------------------------------- over HTTP


def service(tracer: Tracer) -> httpx.AsyncClient:
    """A service that traces ``/work``, and tells what it would tell a service that it calls."""
    app = FastAPI()
    install(app, Metrics(), 2**20, Drain(1.0, lambda: EncoderUnavailable("ending")), tracer, ("/work",))

    @app.get("/work")
    async def work(request: Request, fails: bool = False) -> dict[str, str]:
        span_of(request).set(stream=False)
        with tracer.span("part") as span:
            if fails:
                raise InvalidMedia("broken")
            return span.headers()

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


async def test_a_request_continues_its_callers_trace_and_hands_it_on(traces: Traces) -> None:
    async with service(traces.tracer) as client:
        headers = {"traceparent": TRACEPARENT, "tracestate": "a=b", "x-request-id": "r"}
        response = await client.get("/work", headers=headers)
        for untraced in ("/health", "/metrics", "/nowhere"):
            await client.get(untraced, headers=headers)
    assert traces.names() == ["part", "GET /work"]
    server, part = traces["GET /work"], traces["part"]
    assert server.kind is trace.SpanKind.SERVER
    assert server.parent is not None
    assert f"{server.parent.trace_id:032x}-{server.parent.span_id:016x}" == f"{TRACE}-{CALLER}"
    assert traces.parent_of("part") == "GET /work"
    assert part.context is not None
    assert response.json() == {"traceparent": f"00-{TRACE}-{part.context.span_id:016x}-01", "tracestate": "a=b"}
    assert dict(server.attributes or {}) == {
        "http.request.method": "GET",
        "http.route": "/work",
        "http.response.status_code": 200,
        "epd.request_id": "r",
        "epd.stream": False,
        "epd.code": "ok",
    }
    assert server.status.is_unset


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{'0' * 16}-01", "x" * 9999])
async def test_a_header_that_is_no_trace_begins_one(traces: Traces, header: str) -> None:
    async with service(traces.tracer) as client:
        assert (await client.get("/work", headers={"traceparent": header})).status_code == 200
    assert traces["GET /work"].parent is None


async def test_a_failed_request_has_its_code_in_its_spans_and_its_trace_in_its_log_line(traces: Traces) -> None:
    async with service(traces.tracer) as client:
        with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
            response = await client.get("/work", params={"fails": True}, headers={"traceparent": TRACEPARENT})
    assert response.status_code == 400
    for name in ("part", "GET /work"):
        assert (traces[name].attributes or {})["epd.code"] == "invalid_media"
        assert traces[name].status.description == "invalid_media"
    assert [(line["event"], line["trace_id"]) for line in logs] == [("request refused", TRACE)]


async def test_a_trace_that_is_not_sampled_is_handed_on_as_such() -> None:
    traces = Traces(sampler=ALWAYS_OFF)
    async with service(traces.tracer) as client:
        with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
            response = await client.get("/work", headers={"traceparent": TRACEPARENT})
            await client.get("/work", params={"fails": True})
    assert response.json()["traceparent"].endswith("-00")
    assert traces.names() == []
    assert ["trace_id" in line for line in logs] == [False]


# ----------------------------------------------------------------------------------------------------------- exporting


class Stuck(SpanExporter):
    """A collector that takes its time."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.go_on.wait(60)
        return SpanExportResult.FAILURE


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    exporter = Stuck()
    yield exporter
    exporter.go_on.set()


async def test_a_stuck_collector_holds_up_neither_spans_nor_the_end(stuck: Stuck) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(stuck, max_queue_size=64, max_export_batch_size=8))
    tracer = OtelTracer(provider)
    began = time.monotonic()
    for _ in range(1000):
        with tracer.span("one of many"):
            pass
    assert await asyncio.to_thread(stuck.asked.wait, 5)
    await asyncio.wait_for(tracer.close(), 5)
    assert time.monotonic() - began < 10  # and not the minute that the exporter takes


@pytest.mark.parametrize(("given", "expected"), [(None, "epd-encoder"), ("mine", "mine")])
def test_the_environment_may_name_the_service(given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", given)
    provider = exporting_provider("epd-encoder")
    assert provider.resource.attributes["service.name"] == expected
    provider.shutdown()
