"""One request and its answer over HTTP, as a client sees them. Runs under gevent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import urlsplit

import gevent
from geventhttpclient.response import HTTPSocketPoolResponse

from services.loadtest.clock import Clock
from services.loadtest.run import End, Record
from services.loadtest.traffic.answers import Answer, Answers
from services.loadtest.traffic.connections import Connections
from services.loadtest.traffic.questions import Question

PATH = "/v1/chat/completions"
_REST_OF_STREAM = 0.5
"""Seconds that HTTP's own end of a stream may take after ``[DONE]``, so that its connection may be used again."""


@dataclass(slots=True)
class _Seen:
    """What a client has seen of an answer so far."""

    first: float | None = None
    ended: float | None = None
    status: int = 0
    length: int = 0
    answered_id: str = ""
    retry_after: float | None = None
    answer: Answer = field(default_factory=Answer)


class _Left(Exception):
    """The client leaves, as it wanted to."""


class Exchange:
    """Asks one server. ``patience`` are the seconds that a client waits past its deadline before it gives up.

    Raises ValueError where ``url`` is none.
    """

    def __init__(self, url: str, clock: Clock, patience: float, *, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{url!r} is no base URL; write it as http://host:8000")
        encrypted = parts.scheme == "https"
        self._connections = Connections(parts.hostname, parts.port or (443 if encrypted else 80), encrypted=encrypted)
        self._clock = clock
        self._patience = patience
        self._answers = Answers()
        lines = [
            f"POST {parts.path.rstrip('/').removesuffix('/v1')}{PATH} HTTP/1.1",
            f"host: {parts.netloc.rpartition('@')[2]}",
            "user-agent: epd-loadtest",
            "content-type: application/json",
            *([f"authorization: Bearer {api_key}"] if api_key else []),
        ]
        self._head = "\r\n".join(lines).encode("latin-1")

    def ask(self, question: Question, request_id: str, deadline: float, due: float) -> tuple[Record, int]:
        """Sends a question once, and waits for its answer, for the client's leaving, or for the end of its patience.

        ``due`` is in the clock's time, as are the record's times. Also returns the length of the answer's body in bytes.
        """
        seen = _Seen()
        message = b"".join(
            (
                self._head,
                f"\r\nx-request-id: {request_id}\r\nx-request-timeout: {deadline:g}\r\n".encode("latin-1"),
                b"content-length: %d\r\n\r\n" % len(question.body),
                question.body,
            )
        )
        leaves = question.hang_up is not None and question.hang_up < deadline + self._patience
        sent = time.perf_counter()
        limit = gevent.Timeout.start_new(question.hang_up if leaves else deadline + self._patience)
        try:
            self._answer(message, question, seen)
            end = End.BROKEN if seen.answer.broken else End.ANSWERED
        except _Left:
            end = End.HUNG_UP
        except gevent.Timeout as timeout:
            if timeout is not limit:
                raise
            end = End.HUNG_UP if leaves else End.UNANSWERED
            if not leaves:
                seen.answer = Answer(detail=f"no whole answer within {deadline + self._patience:g} s")
        except (OSError, HTTPException) as error:
            end = End.BROKEN
            seen.answer = Answer(detail=f"{type(error).__name__}: {error}")
        finally:
            limit.close()
        ended = time.perf_counter() if seen.ended is None else seen.ended
        return self._record(question, request_id, deadline, due, sent, ended, end, seen), seen.length

    def close(self) -> None:
        """Closes idle connections."""
        self._connections.close()

    def _answer(self, message: bytes, question: Question, seen: _Seen) -> None:
        response = self._connections.send(message)
        try:
            seen.status = response.get_code()
            seen.answered_id = _header(response, "x-request-id")
            seen.retry_after = _number(_header(response, "retry-after"))
            if question.streamed and seen.status == 200:
                self._stream(response, question, seen)
            else:
                body = response.read()
                seen.length = len(body)
                seen.answer = self._answers.whole(seen.status, body)
                seen.ended = time.perf_counter()
                if seen.answer.code == "ok":
                    seen.first = seen.ended
        finally:
            response.release()

    def _stream(self, response: HTTPSocketPoolResponse, question: Question, seen: _Seen) -> None:
        kind = _header(response, "content-type")
        if not kind.startswith("text/event-stream"):
            seen.answer = Answer(detail=f"a stream was asked for, and {kind or 'something'} came", broken=True)
            return
        events = self._answers.events()
        try:
            while line := response.readline(b"\n"):
                seen.length += len(line)
                events.line(line)
                if seen.first is None and events.begun:
                    seen.first = time.perf_counter()
                    if question.hang_up is not None:
                        raise _Left
                if events.over:
                    seen.ended = time.perf_counter()
                    break
        except HTTPException as error:
            seen.answer = Answer(detail=f"the stream broke off: {error}", broken=True)
            return
        seen.answer = events.answer()
        if not response.message_complete:
            with gevent.Timeout(_REST_OF_STREAM, False):
                response.read()

    def _record(
        self,
        question: Question,
        request_id: str,
        deadline: float,
        due: float,
        sent: float,
        ended: float,
        end: End,
        seen: _Seen,
    ) -> Record:
        answer, right = seen.answer, None
        if end is End.ANSWERED and answer.code == "ok" and question.expected is not None:
            right = answer.text.strip() == question.expected
        wrong = right is False
        return Record(
            id=request_id,
            kind=question.kind,
            streamed=question.streamed,
            fresh=question.fresh,
            deadline=deadline,
            due=due,
            sent=self._clock.at(sent),
            first=None if seen.first is None else self._clock.at(seen.first),
            ended=self._clock.at(ended),
            end=end,
            status=seen.status,
            code=answer.code,
            retry_after=seen.retry_after,
            answered_id=seen.answered_id,
            detail=answer.detail,
            right=right,
            said=answer.text if wrong else "",
            expected=(question.expected or "") if wrong else "",
        )


def _header(response: HTTPSocketPoolResponse, name: str) -> str:
    value = response.get(name)
    return value if isinstance(value, str) else ",".join(value or ())


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # none, or a date
        return None
