"""Traces of real services, as a collector gets them: one a request, across both, with the reason of a failure."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Record
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from PIL import Image

from tests.chats import encoded, user
from tests.processes import UNCACHED, Service, wait_for

PICTURE = encoded(Image.new("RGB", (64, 64), "red"))
CHAT, ENCODE = "POST /v1/chat/completions", "POST /encode"
CALLER = "b7ad6b7169203331"


@dataclass(frozen=True)
class Seen:
    """A span as it was received."""

    service: str
    record: Record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def attributes(self) -> dict[str, Any]:
        pairs = self.record.attributes
        return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}

    @property
    def failure(self) -> str | None:
        status = self.record.status
        return status.message if status.code == Status.STATUS_CODE_ERROR else None


class Collector:
    """Takes OTLP over HTTP, and keeps the spans by trace."""

    def __init__(self) -> None:
        self.traces: dict[str, list[Seen]] = defaultdict(list)
        traces = self.traces

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                for sent in ExportTraceServiceRequest.FromString(raw).resource_spans:
                    names = {pair.key: pair.value.string_value for pair in sent.resource.attributes}
                    for scope in sent.scope_spans:
                        for record in scope.spans:
                            traces[record.trace_id.hex()].append(Seen(names["service.name"], record))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def trace(self, trace_id: str, *names: str) -> Trace:
        """The spans of a trace, once at least these are there."""

        def complete() -> list[Seen] | None:
            found = list(self.traces[trace_id])
            return found if {span.name for span in found} >= set(names) else None

        return Trace(wait_for(complete, 20, f"a trace with {', '.join(names)}"))


class Trace:
    def __init__(self, spans: list[Seen]) -> None:
        self.spans = spans
        self._by_id = {span.record.span_id: span for span in spans}

    def __getitem__(self, name: str) -> Seen:
        (span,) = (span for span in self.spans if span.name == name)
        return span

    def chain(self, name: str) -> list[str]:
        """A span and what it is part of, up to the caller of all."""
        span: Seen | None = self[name]
        names: list[str] = []
        while span is not None:
            names.append(f"{span.service}: {span.name}")
            above = span.record.parent_span_id
            span = self._by_id.get(above)
        return [*names, above.hex()]


@contextmanager
def exporting_to(url: str, delay_ms: int = 50) -> Iterator[None]:
    """Services that are made inside send their spans to ``url``, ``delay_ms`` milliseconds after the first of a batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", str(delay_ms))
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@dataclass(frozen=True)
class Traced:
    encoder: Service
    language: Service


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    with exporting_to(collector.url):
        encoder = Service("encoder", folder, tracing=True, faults_enabled=True, log_format="json", **UNCACHED)
        language = Service("language", folder, tracing=True, encoders=encoder.url, log_format="json", **UNCACHED)
    with encoder.start(wait=False), language.start(wait=False):
        language.wait_until_ready(encoders=1)
        yield Traced(encoder, language)


def ask(language: Service, trace_id: str, *parts: bytes | str, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{language.url}/v1/chat/completions",
        json=user(*parts, "Describe the picture.", max_tokens=4, **fields),
        headers={"traceparent": f"00-{trace_id}-{CALLER}-01", "x-request-id": f"request-{trace_id[0]}"},
        timeout=30,
        trust_env=False,
    )


@pytest.mark.parametrize(("stream", "trace_id"), [(False, "1" * 32), (True, "2" * 32)])
def test_one_request_is_one_trace_across_both_services(
    traced: Traced, collector: Collector, stream: bool, trace_id: str
) -> None:
    response = ask(traced.language, trace_id, PICTURE, stream=stream)
    assert response.status_code == 200, response.text
    own, theirs = ["tokenize", "media", "embeddings", "prompt", "engine"], ["fetch", "decode", "tower", "publish"]
    trace = collector.trace(trace_id, CHAT, ENCODE, "encode", *own, *theirs)
    for name in own:
        assert trace.chain(name) == [f"epd-language: {name}", f"epd-language: {CHAT}", CALLER]
    for name in theirs:
        assert trace.chain(name) == [
            f"epd-encoder: {name}",
            f"epd-encoder: {ENCODE}",
            "epd-language: encode",
            "epd-language: embeddings",
            f"epd-language: {CHAT}",
            CALLER,
        ]
    assert len(trace.spans) == 12
    kinds = {span.name: span.record.kind for span in trace.spans if span.record.kind != Record.SPAN_KIND_INTERNAL}
    assert kinds == {CHAT: Record.SPAN_KIND_SERVER, ENCODE: Record.SPAN_KIND_SERVER, "encode": Record.SPAN_KIND_CLIENT}
    assert trace[CHAT].attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "epd.request_id": f"request-{trace_id[0]}",
        "epd.stream": stream,
        "epd.items": 1,
        "epd.code": "ok",
    }
    assert trace["embeddings"].attributes == {"epd.items": 1, "epd.cached": 0, "epd.attempts": 1}
    assert trace["encode"].attributes == {
        "epd.encoder": traced.encoder.url,
        "epd.encoder_id": trace[ENCODE].attributes["epd.encoder_id"],
        "epd.attempt": 0,
        "epd.items": 1,
        "epd.code": "ok",
    }
    tower = {"epd.item", "epd.tokens", "epd.cache", "epd.queue_seconds", "epd.tower_seconds"}
    assert trace["tower"].attributes.keys() == tower
    engine = trace["engine"]
    assert [event.name for event in engine.record.events] == ["first token"]
    assert engine.attributes["epd.tokens"] == 4
    assert engine.attributes["epd.finish_reason"] == "length"
    assert [span.failure for span in trace.spans] == [None] * 12
    # OpenTelemetry swallows what is wrong with the current span, but says so.
    assert "Failed to detach context" not in traced.language.log.read_text()


def test_a_broken_picture_fails_in_the_span_of_its_decoding(traced: Traced, collector: Collector) -> None:
    response = ask(traced.language, "3" * 32, b"no picture", stream=True)
    assert response.status_code == 400
    failed = (CHAT, "embeddings", "encode", ENCODE, "decode")
    trace = collector.trace("3" * 32, *failed)
    assert {span.name: span.failure for span in trace.spans if span.failure} == dict.fromkeys(failed, "invalid_media")
    assert trace[CHAT].attributes["http.response.status_code"] == 400
    for service in (traced.encoder, traced.language):
        (line,) = [line for line in service.log.read_text().splitlines() if "request refused" in line]
        assert f'"trace_id": "{"3" * 32}"' in line


def test_an_attempt_that_fails_on_the_way_has_its_code(traced: Traced, collector: Collector) -> None:
    httpx.post(f"{traced.encoder.url}/v1/faults", json={"kind": "corrupt", "count": 1}, trust_env=False).raise_for_status()
    response = ask(traced.language, "4" * 32, PICTURE)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "embedding_corrupt")
    failed = (CHAT, "embeddings", "encode")
    trace = collector.trace("4" * 32, *failed, ENCODE)
    assert {span.name: span.failure for span in trace.spans if span.failure} == dict.fromkeys(failed, "embedding_corrupt")
    assert trace[ENCODE].attributes["epd.code"] in ("ok", "client_gone")


def test_what_is_not_sent_yet_is_sent_at_the_end(collector: Collector, tmp_path: Path) -> None:
    with exporting_to(collector.url, delay_ms=600_000):
        language = Service("language", tmp_path, tracing=True, encoders="")
    with language.start():
        assert ask(language, "5" * 32).status_code == 200
        assert language.stop() == 0
    assert len(collector.trace("5" * 32, CHAT, "engine").spans) == 5


def test_a_collector_that_does_not_answer_costs_no_request_anything(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        with exporting_to(f"http://127.0.0.1:{silent.getsockname()[1]}"):
            language = Service("language", tmp_path, tracing=True, encoders="")
        with language.start():
            silent.settimeout(20)
            for number in range(10):
                began = time.monotonic()
                assert ask(language, f"{number + 1:032x}").status_code == 200
                if number == 0:
                    silent.accept()  # it is being asked from here on
                assert time.monotonic() - began < 9  # the exporter waits for ten seconds
            began = time.monotonic()
            language.process.send_signal(signal.SIGTERM)
            assert language.process.wait(20) == 0
            assert time.monotonic() - began < 9
