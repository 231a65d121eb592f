"""The data socket: each message goes to the wait that it belongs to, or is counted and dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import zmq
import zmq.asyncio

from services.language.embeddings.assembly import Assembler
from services.language.embeddings.gate import Gate
from services.language.embeddings.memory import OpenMemory
from shared.errors import EmbeddingCorrupt, EmbeddingIncompatible, EngineOverloaded, EpdError, InternalError
from shared.identity import MediaItem
from shared.seam import LOOPBACK, Seam
from shared.telemetry import Metrics, get_logger
from shared.wire import Buffer, ForeignVersion, Header, Heartbeat, bytes_of, read_header

_log = get_logger("receiver")

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


class Receiver:
    """Owns the PULL socket. Headers are read as they come, so that nothing that came counts as missing; tensors are verified in
    a thread, one message at a time. Only what somebody waits for is held, and no more than ``max_held_bytes`` of it.

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
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        # Both are limits of one frame and of one peer; what several peers send at once is bounded by what was asked of them.
        # Messages may be large, so of each peer two wait here and one arrives; more were measured to make nothing faster.
        self._socket.set(zmq.MAXMSGSIZE, max_message_bytes)
        self._socket.set(zmq.RCVHWM, 2)
        seam.secure_server(self._socket)
        self._gate = Gate(seam, metrics)
        self._open = contextlib.ExitStack()
        if ":" in host:
            self._socket.set(zmq.IPV6, 1)
        self._bind = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        self._port = port
        self._waits: dict[tuple[str, int], Wait] = {}
        self._task: asyncio.Task[None] | None = None
        self._verifying: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verify")
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
        self._task = asyncio.create_task(self._serve(), name="receiver")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for task in self._verifying:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
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

    async def _serve(self) -> None:
        while True:
            try:
                frames = await self._socket.recv_multipart(copy=False)
                buffers = [frame.buffer for frame in frames]
                self._bytes.inc(sum(buffer.nbytes for buffer in buffers))
                outcome = self._sort(buffers)
            except Exception as error:
                outcome = "malformed"
                _log.error("message could not be handled", exc_info=error)
            if outcome is not None:
                self._received.labels(outcome).inc()

    def _sort(self, buffers: Sequence[Buffer]) -> str | None:
        """Gives a message to the wait that it belongs to; returns its outcome, or None where that is told elsewhere."""
        try:
            header = read_header(buffers[0])
            if self.on_sign is not None:
                self.on_sign(header.encoder_id, header if isinstance(header, Heartbeat) else None)
            if isinstance(header, Heartbeat):
                return None
        except ForeignVersion as error:
            return self._fail((error.request_id, error.attempt), error)
        except EmbeddingCorrupt as error:
            _log.warning("message dropped", reason=error.message)
            return "malformed"
        wait = self._waits.get((header.request_id, header.attempt))
        if wait is None:
            self._drop("late", header)
            return None
        if not wait.came(header.item):
            self._drop("repeated" if wait.expects(header.item) else "foreign", header)
            return None
        try:
            size = self._size(header, buffers)
        except EpdError as error:
            self._give_back(header)
            wait.fail(error)
            return error.code
        self._held_bytes += size
        wait.holding.bytes += size
        task = asyncio.create_task(self._verify(wait, header, buffers[1:]))
        self._verifying.add(task)
        task.add_done_callback(self._verifying.discard)
        return None

    def _size(self, header: Header, buffers: Sequence[Buffer]) -> int:
        """The bytes that a message brings.

        Raises:
            EngineOverloaded: they are too many.
            EmbeddingCorrupt, EmbeddingIncompatible: they cannot be told.
        """
        size: int = sum(buffer.nbytes for buffer in buffers)
        if header.place is not None:
            size += sum(bytes_of(spec) for spec in header.tensors)
        if self._held_bytes + size > self._max_held_bytes:
            text = f"This service holds {self._held_bytes} bytes of embeddings already; {size} more are too many."
            raise EngineOverloaded(text)
        return size

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

    async def _verify(self, wait: Wait, header: Header, frames: Sequence[Buffer]) -> None:
        loop = asyncio.get_running_loop()
        try:
            item = await loop.run_in_executor(self._thread, self._assemble, wait, header, frames)
            if item is None:
                return
            wait.put(header.item, item)
            outcome = "ok"
        except EpdError as error:
            wait.fail(error)
            outcome = error.code
        except Exception as error:
            _log.error("message could not be verified", exc_info=error)
            wait.fail(InternalError("The embeddings could not be verified; the log has a traceback."))
            outcome = "internal_error"
        self._received.labels(outcome).inc()

    def _assemble(self, wait: Wait, header: Header, frames: Sequence[Buffer]) -> MediaItem | None:
        """A verified item; None where meanwhile nobody waits for it, so that those who are gone do not keep others waiting."""
        if wait.closed:
            self._give_back(header)
            return None
        if header.place is None:
            return self._assembler.assemble(header, frames)
        if frames:
            self._give_back(header)
            raise EmbeddingCorrupt(f"{len(frames)} tensor frames came with a header that says they lie elsewhere.")
        if self._memory is None:
            raise EmbeddingIncompatible("The embeddings lie in shared memory, which this service does not take.")
        return self._assembler.assemble(header, self._memory.open(header, header.place))

    def _fail(self, key: tuple[str, int], error: EpdError) -> str:
        wait = self._waits.get(key)
        if wait is not None:
            wait.fail(error)
        return error.code
