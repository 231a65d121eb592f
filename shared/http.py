"""What every HTTP surface of the pair has: request ids, error bodies, limits, ``/health`` and ``/metrics``."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from shared.errors import EpdError, InvalidRequest, body_of, from_exception, from_validation, headers_of, release
from shared.lifecycle import Drain
from shared.outcome import Failure, failed, ignore
from shared.telemetry import Metrics, get_logger, log_failure, new_request_id
from shared.tracing import NO_TRACES, Span, Tracer

_log = get_logger("http")

T = TypeVar("T")

MAX_JSON_VALUES = 50_000
_JSON_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)|[,\[{]', re.DOTALL)  # a string, ended or not, or what a value follows
_SMALL_BODY = 64 * 1024

REQUEST_ID_HEADER = "x-request-id"


def install(
    app: FastAPI,
    metrics: Metrics,
    max_body_bytes: int,
    drain: Drain,
    tracer: Tracer = NO_TRACES,
    work: Collection[str] = (),
    on_failure: Callable[[Failure], None] = ignore,
) -> None:
    """Gives ``app`` the common routes, error handlers and middleware, and ``app.state.drain``. Requests to the paths in
    ``work`` get spans, and may have bodies of ``max_body_bytes``; those to others have small ones, if any. ``on_failure`` is
    told of each request that failed, when its answer has ended."""
    app.state.drain = drain
    metrics.gauge(
        "epd_event_loop_tasks", "Tasks in the event loop; it grows without end only if something leaks."
    ).set_function(lambda: len(asyncio.all_tasks()))

    @app.get("/health", tags=["probes"], summary="The process is alive and its event loop turns")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/metrics",
        tags=["probes"],
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def expose() -> Response:
        return Response(await metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def on_error(request: Request, error: Exception) -> Response:
        return respond(request.scope, error)

    # ClientDisconnect and what else is no answer pass on to the envelope.
    for kind in (EpdError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, on_error)
    app.add_middleware(
        Envelope,
        metrics=metrics,
        max_body_bytes=max_body_bytes,
        drain=drain,
        tracer=tracer,
        work=frozenset(work),
        on_failure=on_failure,
    )


def respond(scope: Scope, cause: BaseException) -> JSONResponse:
    """Logs a failure and turns it into a response."""
    if isinstance(cause, RequestValidationError):
        error: EpdError = from_validation(list(cause.errors()))
    elif isinstance(cause, HTTPException):
        error = InvalidRequest(str(cause.detail))
    else:
        error = from_exception(cause)
    status, headers = error.status, headers_of(error)
    if isinstance(cause, HTTPException):
        status, headers = cause.status_code, {**headers, **(cause.headers or {})}  # such as Allow, which a 405 must have
    failed(scope, error, status)
    log_failure(_log, error, cause, probe=scope["path"] == "/ready")
    release(cause)
    return JSONResponse(body_of(error).model_dump(), status_code=status, headers=headers)


def component_schemas(app: FastAPI, *models: type[BaseModel]) -> None:
    """Describes ``models`` in the OpenAPI document's components, for bodies that are parsed by hand.

    Operations refer to them by ``schema_ref``.
    """
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = original()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for model in models:
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def schema_ref(model: type[BaseModel]) -> dict[str, str]:
    """A reference to a model that ``component_schemas`` describes."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


class BodyTooLarge(InvalidRequest):
    """The body of a request passed the limit."""


class Envelope:
    """Gives each request its id, counts, times and traces it, bounds its body, and answers what nothing else caught."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        max_body_bytes: int,
        drain: Drain,
        tracer: Tracer,
        work: frozenset[str],
        on_failure: Callable[[Failure], None],
    ) -> None:
        self.app = app
        self.on_failure = on_failure
        self.tracer = tracer
        self.work = work
        self.drain = drain
        self.metrics = metrics
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        request_id = new_request_id(headers.get(REQUEST_ID_HEADER))
        scope["epd_request_id"] = request_id
        status: int | None = None
        began = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER.encode(), request_id.encode())]
            await send(message)

        with (
            self._span(scope, headers, request_id) as span,
            bound_contextvars(request_id=request_id, **span.log_fields()),
            self.drain.request(),
        ):
            try:
                limit = self.max_body_bytes if scope["path"] in self.work else min(_SMALL_BODY, self.max_body_bytes)
                declared = headers.get("content-length", "0")
                if declared.isdecimal() and int(declared) > limit:
                    raise BodyTooLarge(f"The body has {declared} bytes; at most {limit} are accepted.")
                await self.app(scope, _bounded(receive, limit), send_with_id)
            except ClientDisconnect as gone:
                # Nobody is left to answer, and nobody is to blame.
                scope["epd_code"] = "client_gone"
                _log.info("client gone", path=scope["path"])
                release(gone)
            except asyncio.CancelledError:
                # Nobody cancels a request but the end of the service.
                scope["epd_code"] = "cancelled"
                raise
            except Exception as error:
                response = respond(scope, error)
                if status is not None:
                    raise
                await response(scope, receive, send_with_id)
            finally:
                # Only known routes become labels, so that a scanner cannot grow the registry.
                route = getattr(scope.get("route"), "path", "unmatched")
                code = scope.get("epd_code", "ok")
                self.metrics.requests.labels(route, code).inc()
                self.metrics.seconds.labels(route).observe(time.perf_counter() - began)
                span.set(**{"http.response.status_code": status}, code=code)
                if code not in ("ok", "client_gone"):
                    span.fail(code)
                failure: Failure | None = scope.get("epd_failure")
                if failure is not None:
                    # What is refused before it is routed has no route, but what is work is known by its path.
                    known = scope["path"] if scope["path"] in self.work else route
                    told = replace(failure, request_id=request_id, method=scope["method"], route=known, streamed=status == 200)
                    self.on_failure(told)

    def _span(self, scope: Scope, headers: Mapping[str, str], request_id: str) -> Span:
        """The span of a request, also left in ``scope`` for those who know more; probes and the like would only be noise."""
        tracer = self.tracer if scope["path"] in self.work else NO_TRACES
        method, path = scope["method"], scope["path"]
        span = tracer.span(f"{method} {path}", kind="server", caller=headers, request_id=request_id)
        span.set(**{"http.request.method": method, "http.route": path})
        scope["epd_span"] = span
        return span


def _bounded(receive: Receive, limit: int) -> Callable[[], Awaitable[Message]]:
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise BodyTooLarge(f"The body has more than the {limit} bytes that are accepted.")
        return message

    return bounded


def check_json(text: bytes) -> None:
    """JSON may hold many bytes, but not so many values that parsing them stops the event loop for seconds.

    Measured: 16 MB of ``[[],[],…]`` take ten seconds, and 14 MB of wrong keys make a gigabyte of complaints.

    Raises:
        InvalidRequest: it holds more than ``MAX_JSON_VALUES``.
    """
    # Each value but the outermost follows one of these. Those in strings count too at first: that is fast, and few enough.
    values = 0
    for mark in (b",", b"[", b"{"):
        at = text.find(mark)
        while at >= 0 and values < MAX_JSON_VALUES:
            values += 1
            at = text.find(mark, at + 1)
    if values < MAX_JSON_VALUES:
        return
    values = 0
    for token in _JSON_TOKEN.finditer(text):
        values += text[token.start()] != ord('"')
        if values >= MAX_JSON_VALUES:
            raise InvalidRequest(f"The body holds more than {MAX_JSON_VALUES} values.")


async def in_time(request: Request, reading: Coroutine[Any, Any, T], seconds: float) -> T:
    """The result of ``reading`` a request's body, which the client has ``seconds`` for.

    Raises:
        InvalidRequest: it took longer.
        Unavailable: the service is ending, and has no time left for it.
    """
    drain: Drain = request.app.state.drain
    task = asyncio.create_task(reading)
    try:
        await asyncio.wait({task, drain.expiry()}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if drain.expired.is_set():
            raise drain.refuse()
        raise InvalidRequest(f"The body did not arrive within {seconds:.3g} s.")
    finally:
        task.cancel()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client hangs up. The request's body must have been read.

    Raises:
        ClientDisconnect: the client hung up first.
        Unavailable: the service is ending, and has no time left for it.
    """
    drain: Drain = request.app.state.drain
    doing = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({doing, gone, drain.expiry()}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientDisconnect if gone.done() else drain.refuse()
    finally:
        gone.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
            try:
                doing.result()
            except BaseException as left:
                release(left)  # nobody asks for it any more


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def request_id_of(request: Request) -> str:
    """The id of the request being served."""
    return str(request.scope["epd_request_id"])


def span_of(request: Request) -> Span:
    """The span of the request being served."""
    span: Span = request.scope["epd_span"]
    return span
