"""Sends messages to the receivers of language services: a PUSH socket for each destination, and another for heartbeats."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from services.encoder.window import Window
from shared.errors import EncoderFailed, InvalidRequest
from shared.seam import LOOPBACK, Seam
from shared.wire import Buffer

S = TypeVar("S", bound="zmq.Socket[Any]")

# Milliseconds for which the kernel at the other end may leave a heartbeat unacknowledged, however busy the process there is.
_CUT = 2000


class Publisher:
    """Owns the sending sockets. The least recently used destination is closed when there are too many, unless a
    message is being handed to it. Of what is on its way to each, at most ``max_queued_bytes`` are held in memory."""

    def __init__(
        self,
        max_destinations: int = 256,
        high_water_mark: int = 64,
        max_queued_bytes: int = 256 * 2**20,
        seam: Seam = LOOPBACK,
    ) -> None:
        self.seam = seam
        self._context = zmq.asyncio.Context()
        self._beats_context = zmq.Context()  # with an I/O thread of its own
        self._outboxes: OrderedDict[str, Outbox] = OrderedDict()
        self._beats: dict[str, Beats] = {}
        self._max = max_destinations
        self._high_water_mark = high_water_mark
        self._max_queued_bytes = max_queued_bytes

    @property
    def queued_bytes(self) -> int:
        """Bytes that are on their way, or wait for their connection."""
        return sum(there.window.queued for there in self._outboxes.values())

    async def publish(self, endpoint: str, frames: Sequence[Buffer], timeout: float) -> None:
        """Hands one message to the connection with ``endpoint``, without copying its tensors. A caller that is cancelled before
        takes its message with it.

        Raises:
            InvalidRequest: ``endpoint`` is not an address that may be sent to.
            EncoderFailed: no receiver took it, nor anything of what is before it, for ``timeout`` seconds.
        """
        there = self._outbox(endpoint)
        there.sending += 1
        self._trim()
        try:
            await there.send(frames, timeout)
        except TimeoutError as error:
            if not there.window.queued and self._outboxes.get(endpoint) is there:
                # It holds nothing that could be lost, and may be of no use any more: see ``beat``.
                self._retire(endpoint)
            raise EncoderFailed(f"No receiver at {endpoint} took the embeddings within {timeout:g} s.") from error
        finally:
            there.sending -= 1
            there.close_if_retired()
            self._trim()

    def beat(self, endpoint: str, frame: bytes) -> None:
        """Sends a heartbeat by a socket that large messages cannot hold up. One that cannot leave gives way to the next.

        Where the connection for heartbeats broke, that for messages is given up too: after a network was cut, or an address
        has moved, the kernel would go on with it for a quarter of an hour.

        Raises:
            InvalidRequest: ``endpoint`` is not an address that may be sent to.
        """
        if self._beating(endpoint).broke() and endpoint in self._outboxes:
            self._retire(endpoint)
        try:
            self._beating(endpoint).socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            # A socket to which something answered that is not ZeroMQ, or has other keys, never connects again.
            self.forget(endpoint)
            self._beating(endpoint).socket.send(frame, zmq.NOBLOCK)

    def forget(self, endpoint: str) -> None:
        """Nobody listens at ``endpoint`` any more: its sockets are closed, one that is sending when that ends."""
        if (beats := self._beats.pop(endpoint, None)) is not None:
            beats.close()
        if endpoint in self._outboxes:
            self._retire(endpoint)

    def close(self) -> None:
        """Closes all sockets; what they have not sent after a second is lost."""
        for context in (self._context, self._beats_context):
            context.destroy(linger=1000)

    def _beating(self, endpoint: str) -> Beats:
        if endpoint not in self._beats:
            socket = self._beats_context.socket(zmq.PUSH)
            # Of what waits for a connection only the newest is kept: an old sign of life is none.
            socket.set(zmq.CONFLATE, 1)
            # Not for messages: a reader that takes its time leaves them unacknowledged, too.
            socket.set(zmq.TCP_MAXRT, _CUT)
            self._beats[endpoint] = Beats(_connected(socket, endpoint, self.seam))
        return self._beats[endpoint]

    def _outbox(self, endpoint: str) -> Outbox:
        if endpoint in self._outboxes:
            self._outboxes.move_to_end(endpoint)
            return self._outboxes[endpoint]
        socket = self._context.socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, self._high_water_mark)
        socket.set(zmq.IMMEDIATE, 1)  # queue for connected receivers only, so that a dead one is noticed here
        there = Outbox(_connected(socket, endpoint, self.seam), Window(self._max_queued_bytes))
        self._outboxes[endpoint] = there
        return there

    def _trim(self) -> None:
        """Closes what is too many. A socket that is closed cancels who sends by it, so those stay until they are idle."""
        while len(self._outboxes) > self._max:
            idle = next((endpoint for endpoint, there in self._outboxes.items() if not there.sending), None)
            if idle is None:
                return
            self._retire(idle)

    def _retire(self, endpoint: str) -> None:
        """Whoever sends to ``endpoint`` from now on does so by a new socket."""
        there = self._outboxes.pop(endpoint)
        there.retired = True
        there.close_if_retired()


class Beats:
    """The socket for heartbeats to one receiver."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._events = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def broke(self) -> bool:
        """Whether its connection has broken since the last call."""
        found = False
        while self._events.poll(0):
            recv_monitor_message(self._events)
            found = True
        return found

    def close(self) -> None:
        self.socket.disable_monitor()
        self.socket.close()


class Outbox:
    """The socket that leads to one receiver, and what is on its way by it. ``sending`` counts who is handing a message over."""

    def __init__(self, socket: zmq.asyncio.Socket, window: Window) -> None:
        self.socket = socket
        self.window = window
        self.sending = 0
        self.retired = False

    def close_if_retired(self) -> None:
        """Closes the socket that nobody will use again, once nobody does."""
        if self.retired and not self.sending:
            self.socket.close()

    async def send(self, frames: Sequence[Buffer], timeout: float) -> None:
        """Returns when the message is the socket's.

        Raises:
            TimeoutError: the receiver took nothing for ``timeout`` seconds.
        """
        loop, window = asyncio.get_running_loop(), self.window
        began, size = loop.time(), sum(memoryview(frame).nbytes for frame in frames)
        await window.enter(size, began, timeout)
        last = memoryview(frames[-1])
        end = _at_end_of(last, loop, window.sent, size)
        # Not copied however small, so that it ends when the message has left. Small ones before it may be.
        parts = [*frames[:-1], zmq.Frame(last, copy=False)]
        del last
        try:
            async with asyncio.timeout_at(window.patience(began, timeout)):
                await self.socket.send_multipart(parts, copy=False)
            window.sent()
        except BaseException:
            end.detach()
            window.leave(size)
            raise
        finally:
            parts.clear()


def _at_end_of(
    view: memoryview, loop: asyncio.AbstractEventLoop, sent: Callable[[int], None], size: int
) -> weakref.finalize[..., Any]:
    """Calls ``sent(size)`` in ``loop`` when ``view`` is no more: the socket holds the last frame until all of the message has
    left memory, and lets go of it in another thread."""

    def ended() -> None:
        with suppress(RuntimeError):  # the loop is no more either
            loop.call_soon_threadsafe(sent, size)

    end = weakref.finalize(view, ended)
    end.atexit = False
    return end


def _connected(socket: S, endpoint: str, seam: Seam) -> S:
    """``socket``, on its way to ``endpoint``. Once closed it may send for a second more.

    Raises:
        InvalidRequest: ``endpoint`` is not an address that can be sent to.
    """
    try:
        seam.check_reply_to(endpoint)
        seam.secure_client(socket)
        socket.set(zmq.LINGER, 1000)
        socket.set(zmq.RECONNECT_IVL, 50)
        socket.set(zmq.RECONNECT_IVL_MAX, 1000)
        socket.set(zmq.CONNECT_TIMEOUT, 1000)  # else the kernel asks less and less often while nothing answers
        socket.set(zmq.IPV6, 1)
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise InvalidRequest(f"{endpoint} is not an address that can be sent to: {error}.", param="reply_to") from error
    except InvalidRequest:
        socket.close(linger=0)
        raise
    return socket
