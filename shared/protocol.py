"""What a connection may cost beside the bodies of its requests: heads, framing, requests sent ahead, and time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared.errors import InvalidRequest, body_of
from shared.telemetry import new_request_id

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request that are not its body: its line, its headers, and what frames chunks, beside a quarter of the body's."""
MAX_HEADERS = 128
MAX_AHEAD = 16
"""Requests that a client may send on one connection while the first of them is being answered."""
_LINGER = 1.0
"""Seconds for which a connection is read after a refusal: to close it at once would take the answer from the client, too."""


class _Refused(Exception):
    """The request passes a limit, which ``status`` and the message name."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, within limits. What cannot be parsed, or passes one, is answered as other bad requests are, and the
    connection closed; it is only closed while an answer is under way on it.

    ``head_seconds`` are from the beginning of a connection, or the end of an answer, to the end of the next request's head.
    """

    head_seconds = 30.0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._head = self._headers = 0  # of this request: bytes of its line and headers, and their number
        self._came = self._body = 0  # of this request: all bytes, and those of its body
        self._begun = self._in_body = self._over = False
        self._refused = _Refused(HTTPStatus.BAD_REQUEST, "The request is not well-formed HTTP/1.1.")
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._came += len(data)
        super().data_received(data)
        if self._came - self._body > MAX_HEAD_BYTES + self._body // 4 and not self._over:
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        self._head = self._headers = 0
        self._begun, self._in_body = True, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._count(len(name) + len(value) + len(": \r\n"))
        if not self._in_body:  # what comes behind chunks is no header of a request that is under way
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_AHEAD:
            self._raise(_Refused(HTTPStatus.BAD_REQUEST, f"More than {MAX_AHEAD} requests were sent ahead."))
        self._stop_timer()
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._came = self._body = 0
        self._begun = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._await_head()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """uvicorn's name for what it does when parsing fails."""
        self._refuse(self._refused)

    def _unsupported_upgrade_warning(self) -> None:
        """Clients that offer another protocol get their answer by this one; that is no reason to warn."""

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            self._raise(_too_large())

    def _raise(self, refused: _Refused) -> None:
        """Ends parsing, from within one of its callbacks."""
        self._refused = refused
        raise refused

    def _refuse(self, refused: _Refused) -> None:
        self._over = True
        self._stop_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
        else:
            body = body_of(InvalidRequest(str(refused))).model_dump_json()
            head = (
                f"HTTP/1.1 {refused.status} {refused.status.phrase}",
                "content-type: application/json",
                f"content-length: {len(body.encode())}",
                f"x-request-id: {new_request_id()}",
                "connection: close",
            )
            self.transport.write("\r\n".join((*head, "", body)).encode())
            self.transport.write_eof()
            self.flow.resume_reading()
            self._timer = self.loop.call_later(_LINGER, self.transport.close)

    def _await_head(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.head_seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self.transport.is_closing():
            return
        if self._begun or self._came:
            text = f"The head of the request did not arrive within {self.head_seconds:g} s."
            self._refuse(_Refused(HTTPStatus.REQUEST_TIMEOUT, text))
        else:
            self.transport.close()


def _too_large() -> _Refused:
    return _Refused(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        f"The request has more than {MAX_HEADERS} headers, or more than {MAX_HEAD_BYTES} bytes beside its body.",
    )
