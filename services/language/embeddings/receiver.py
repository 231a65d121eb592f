"""The data socket: each message goes to the wait that it belongs to, or is counted and dropped."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import zmq

from services.language.embeddings.assembly import Assembler
from services.language.embeddings.gate import Gate
from services.language.embeddings.memory import OpenMemory
from shared.errors import EmbeddingCorrupt, EmbeddingIncompatible, EngineOverloaded, EpdError, InternalError
from shared.identity import MediaItem
from shared.seam import LOOPBACK, Seam
from shared.telemetry import Metrics, get_logger
from shared.wire import Buffer, ForeignVersion, Header, Heartbeat, bytes_of, read_header

_log = get_logger("receiver")

_LOOK = 0.1  # seconds between looks whether it is to end
_UNDELIVERED = 4  # messages, which may be large, that the thread may be ahead of the event loop

Arrived: TypeAlias = Callable[[int, MediaItem], None]
"""What is told of an item that is verified, by its index."""


class Holding:
    """The bytes of embeddings that are held for one request, by all of its attempts."""

    def __init__(self) -> None:
        self.bytes = 0


class Wait:
    """The items that one attempt of one request waits for. Ends when all are there, or with the first failure.

    ``missing`` are those of which no message came yet; ``received`` is set when there are none left, verified or not.
    ``arrived`` is given each item as soon as it is verified; an ``EpdError`` that it raises fails the wait.
    """

    def __init__(self, indices: Sequence[int], holding: Holding, arrived: Arrived | None = None) -> None:
        self.holding = holding
        self._arrived = arrived
        self._there: set[int] = set()
        self.missing = set(indices)
        self.received = asyncio.Event()
        self._indices = frozenset(indices)
        self.closed = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expects(self, index: int) -> bool:
        """Whether an item is one of this wait's, there or not."""
        return index in self._indices

    def came(self, index: int) -> bool:
        """A message for an item is here; False if it is not one that is waited for, or no longer."""
        if index not in self.missing:
            return False
        self.missing.discard(index)
        if not self.missing:
            self.received.set()
        return True

    def put(self, index: int, item: MediaItem) -> None:
        """An item is verified.

        Raises:
            EpdError: whoever waits cannot use it.
        """
        if self._arrived is not None:
            self._arrived(index, item)
        self._there.add(index)
        if len(self._there) == len(self._indices) and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: EpdError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # seen, so that a wait which was left early does not complain


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it was read: its ``header`` where it has one, the bytes that it brings, and what became of it: an item where
    it was verified, or why it was not. Neither where nobody seemed to wait for it."""

    header: Header | Heartbeat | None
    size: int
    result: MediaItem | EpdError | None = None


class Receiver:
    """Owns the PULL socket. A thread of its own takes messages from it, reads and verifies them one by one; the event loop
    gives each to the wait that it belongs to. Only what somebody waits for is held, and no more than ``max_held_bytes`` of it.

    ``on_sign`` is told of every encoder that something arrives from, and of its heartbeats. Without a ``memory``, tensors must
    come as frames.
    """

    def __init__(
        self,
        assembler: Assembler,
        host: str,
        port: int,
        max_message_bytes: int,
        max_held_bytes: int,
        metrics: Metrics,
        memory: OpenMemory | None = None,
        seam: Seam = LOOPBACK,
    ) -> None:
        self._assembler = assembler
        self._memory = memory
        self._max_held_bytes = max_held_bytes
        self._held_bytes = 0
        self.on_sign: Callable[[str, Heartbeat | None], None] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        # Both are limits of one frame and of one peer; what several peers send at once is bounded by what was asked of them.
        # Messages may be large, so of each peer two wait here and one arrives; more were measured to make nothing faster.
        self._socket.set(zmq.MAXMSGSIZE, max_message_bytes)
        self._socket.set(zmq.RCVHWM, 2)
        self._socket.set(zmq.RCVTIMEO, int(1000 * _LOOK))
        seam.secure_server(self._socket)
        self._gate = Gate(seam, metrics)
        self._open = contextlib.ExitStack()
        if ":" in host:
            self._socket.set(zmq.IPV6, 1)
        self._bind = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        self._port = port
        self._waits: dict[tuple[str, int], Wait] = {}
        self._stopping = threading.Event()
        self._undelivered = threading.Semaphore(_UNDELIVERED)
        self._received = metrics.counter(
            "epd_messages_total", "Embedding messages by outcome of their verification.", "outcome"
        )
        self._dropped = metrics.counter(
            "epd_late_messages_total", "Messages that nobody waits for, or no longer: late, repeated, foreign.", "reason"
        )
        self._bytes = metrics.counter("epd_message_bytes_total", "Bytes of embedding messages.")
        metrics.gauge("epd_waits", "Attempts that wait for embeddings.").set_function(lambda: len(self._waits))
        metrics.gauge("epd_held_bytes", "Bytes of embeddings held for requests that wait for more.").set_function(
            lambda: self._held_bytes
        )

    @property
    def port(self) -> int:
        """The port that encoders send to; known once the receiver runs."""
        return self._port

    async def __aenter__(self) -> Receiver:
        self._open.enter_context(self._gate.watch(self._socket))
        if self._port:
            self._socket.bind(f"{self._bind}:{self._port}")
        else:
            self._port = self._socket.bind_to_random_port(self._bind)
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve, args=(loop,), name="receiver", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)
        self._open.close()
        self._context.destroy(linger=0)

    @contextlib.contextmanager
    def holding(self) -> Iterator[Holding]:
        """The account of one request: what its attempts receive is held until the block ends."""
        holding = Holding()
        try:
            yield holding
        finally:
            self._held_bytes -= holding.bytes

    @contextlib.contextmanager
    def expect(
        self,
        request_id: str,
        attempt: int,
        indices: Sequence[int],
        holding: Holding,
        arrived: Arrived | None = None,
    ) -> Iterator[Wait]:
        """Waits for items inside the block; what comes after it is late and dropped. ``arrived`` is given each one in time."""
        key = (request_id, attempt)
        wait = self._waits[key] = Wait(indices, holding, arrived)
        try:
            yield wait
        finally:
            wait.closed = True
            del self._waits[key]

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """What the thread does. It stays no more than some messages ahead of the event loop."""
        while not self._stopping.is_set():
            if not self._undelivered.acquire(timeout=_LOOK):
                continue
            try:
                received = self.read([frame.buffer for frame in self._socket.recv_multipart(copy=False)])
            except zmq.Again:
                self._undelivered.release()
                continue
            except Exception as error:
                _log.error("message could not be handled", exc_info=error)
                received = Received(None, 0)
            try:
                loop.call_soon_threadsafe(self._deliver, received)
            except RuntimeError:
                return  # the loop is no more
            del received

    def _deliver(self, received: Received) -> None:
        self._undelivered.release()
        self._bytes.inc(received.size)
        outcome = self.give(received)
        if outcome is not None:
            self._received.labels(outcome).inc()

    def read(self, buffers: Sequence[Buffer]) -> Received:
        """Reads a message, and verifies it if somebody waits for it. Slow, so not for the event loop."""
        size: int = sum(buffer.nbytes for buffer in buffers)
        try:
            header = read_header(buffers[0])
        except EmbeddingCorrupt as error:
            _log.warning("message dropped", reason=error.message)
            return Received(None, size)
        except ForeignVersion as error:
            return Received(None, size, error)
        if isinstance(header, Heartbeat):
            return Received(header, size)
        wait = self._waits.get((header.request_id, header.attempt))
        if wait is None or header.item not in wait.missing:
            return Received(header, size)
        try:
            size += self._shared_bytes(header)
            self._check_room(size)
            return Received(header, size, self._assemble(header, buffers[1:]))
        except EpdError as error:
            self._give_back(header)
            return Received(header, size, error.with_traceback(None))  # which would hold the message
        except Exception as error:
            _log.error("message could not be verified", exc_info=error)
            return Received(header, size, InternalError("The embeddings could not be verified; the log has a traceback."))

    def give(self, received: Received) -> str | None:
        """Gives a message to the wait that it belongs to; returns its outcome, or None where that is told elsewhere."""
        header, result = received.header, received.result
        if header is None:
            if not isinstance(result, ForeignVersion):
                return "malformed"
            if (told := self._waits.get((result.request_id, result.attempt))) is not None:
                told.fail(result)
            return result.code
        if self.on_sign is not None:
            self.on_sign(header.encoder_id, header if isinstance(header, Heartbeat) else None)
        if isinstance(header, Heartbeat):
            return None
        wait = self._waits.get((header.request_id, header.attempt))
        if wait is None or result is None:
            foreign = wait is not None and not wait.expects(header.item)
            self._drop("late" if wait is None else "foreign" if foreign else "repeated", header)
            return None
        if not wait.came(header.item):
            self._drop("repeated", header)
            return None
        try:
            self._check_room(received.size)
            self._held_bytes += received.size
            wait.holding.bytes += received.size
            if isinstance(result, EpdError):
                raise result
            wait.put(header.item, result)
        except EpdError as error:
            wait.fail(error)
            return error.code
        except Exception as error:
            _log.error("message could not be handled", exc_info=error)
            wait.fail(InternalError("The embeddings could not be handed on; the log has a traceback."))
            return "internal_error"
        return "ok"

    def _check_room(self, size: int) -> None:
        """Raises EngineOverloaded where so many bytes more are too many."""
        if self._held_bytes + size > self._max_held_bytes:
            text = f"This service holds {self._held_bytes} bytes of embeddings already; {size} more are too many."
            raise EngineOverloaded(text)

    def _shared_bytes(self, header: Header) -> int:
        """What a message brings besides its frames.

        Raises:
            EmbeddingCorrupt, EmbeddingIncompatible: that cannot be told.
        """
        return 0 if header.place is None else sum(bytes_of(spec) for spec in header.tensors)

    def _give_back(self, header: Header) -> None:
        """Shared memory of a message that is not looked at."""
        if header.place is not None and self._memory is not None:
            self._memory.give_back(header.place)

    def _drop(self, reason: str, header: Header) -> None:
        self._give_back(header)
        self._dropped.labels(reason).inc()
        _log.info(
            "message dropped",
            reason=reason,
            request_id=header.request_id.partition("/")[0],
            attempt=header.attempt,
            item=header.item,
            encoder_id=header.encoder_id,
        )

    def _assemble(self, header: Header, frames: Sequence[Buffer]) -> MediaItem:
        """A verified item.

        Raises:
            EpdError: it is not good.
        """
        if header.place is None:
            return self._assembler.assemble(header, frames)
        if frames:
            raise EmbeddingCorrupt(f"{len(frames)} tensor frames came with a header that says they lie elsewhere.")
        if self._memory is None:
            raise EmbeddingIncompatible("The embeddings lie in shared memory, which this service does not take.")
        return self._assembler.assemble(header, self._memory.open(header, header.place))
