"""The door of the data socket: who may come in, and how many were turned away."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from secrets import compare_digest
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from shared.seam import Seam
from shared.telemetry import Metrics, get_logger

_log = get_logger("gate")

# Where ZeroMQ asks whether a peer that has proven its key may come in (RFC 27, ZAP).
_ZAP = "inproc://zeromq.zap.01"
_VERSION, _YES, _NO = b"1.0", b"200", b"400"
_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Gate:
    """Answers for a socket whose keys are good, and counts the connections that came to nothing, by reason: ``keys`` are
    wrong, ``mechanism`` is another (one end has keys, the other none), ``protocol`` is not ZeroMQ's, or ``unfinished`` in time.

    All in a thread of its own: an event loop that is busy would keep encoders waiting at the door, and ZeroMQ's I/O thread too,
    which waits for whoever reads of failures.
    """

    def __init__(self, seam: Seam, metrics: Metrics) -> None:
        self._key = None if seam.keys is None else z85.decode(seam.keys.encoder.public)
        self._told: set[str] = set()
        self._rejected = metrics.counter(
            "epd_rejected_peers_total", "Connections to the data socket that were not let in, by reason.", "reason"
        )

    @contextlib.contextmanager
    def watch(self, socket: zmq.Socket[Any]) -> Iterator[None]:
        """Inside it, the gate is open. ``socket`` is to be bound in it, and to be closed after it."""
        context, name = socket.context, f"inproc://gate-{id(self)}"
        questions = context.socket(zmq.REP, socket_class=zmq.Socket)
        questions.bind(_ZAP)
        socket.monitor(f"{name}-events", _FAILURES)
        events, theirs, ours = (context.socket(zmq.PAIR, socket_class=zmq.Socket) for _ in range(3))
        events.connect(f"{name}-events")
        theirs.bind(f"{name}-end")
        ours.connect(f"{name}-end")
        thread = threading.Thread(target=self._run, args=(theirs, questions, events), name="gate", daemon=True)
        thread.start()
        try:
            yield
        finally:
            socket.disable_monitor()  # first: ZeroMQ waits for whoever reads of failures, for ever
            ours.send(b"")
            thread.join()
            ours.close()

    def _run(self, end: zmq.Socket[Any], questions: zmq.Socket[Any], events: zmq.Socket[Any]) -> None:
        poller = zmq.Poller()
        with end, questions, events:
            for socket in (end, questions, events):
                poller.register(socket, zmq.POLLIN)
            while end not in (ready := dict(poller.poll())):
                try:
                    if questions in ready:
                        questions.send_multipart(self._answer(questions.recv_multipart()))
                    if events in ready:
                        self._count(events.recv_multipart())
                except Exception as error:
                    # Without this thread nobody would ever be let in again.
                    _log.error("the gate failed", exc_info=error)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        """Whether a peer may come in. A question without credentials is about one whose key need not be good."""
        _version, request, _domain, _address, _identity, mechanism, *credentials = question
        good = self._key is None or (mechanism == b"CURVE" and compare_digest(b"".join(credentials), self._key))
        return [_VERSION, request, _YES, b"OK", b"", b""] if good else [_VERSION, request, _NO, b"another secret", b"", b""]

    def _count(self, event: list[bytes]) -> None:
        told = parse_monitor_message(event)
        reason = _reason(told["event"], told["value"])
        self._rejected.labels(reason).inc()
        if reason not in self._told:
            self._told.add(reason)
            _log.warning("a peer was not let in; from now on such are only counted", reason=reason)


def _reason(event: int, value: int) -> str:
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return "unfinished"
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
        return "keys"
    return "mechanism" if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH else "protocol"
