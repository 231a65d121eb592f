"""Sends messages to the receivers of language services: a PUSH socket for each destination, and another for heartbeats."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, TypeVar

import zmq
import zmq.asyncio

from shared import addresses
from shared.errors import EncoderFailed, InvalidRequest
from shared.wire import Buffer

S = TypeVar("S", bound="zmq.Socket[Any]")


class Publisher:
    """Owns the sending sockets. The least recently used destination is closed when there are too many, unless a
    message is being handed to it."""

    def __init__(self, max_destinations: int = 256, high_water_mark: int = 64) -> None:
        self._context = zmq.asyncio.Context()
        self._beats_context = zmq.Context()  # with an I/O thread of its own
        self._sockets: OrderedDict[str, zmq.asyncio.Socket] = OrderedDict()
        self._sending: Counter[str] = Counter()
        self._forgotten: set[str] = set()
        self._beats: dict[str, zmq.Socket[bytes]] = {}
        self._max = max_destinations
        self._high_water_mark = high_water_mark

    async def publish(self, endpoint: str, frames: Sequence[Buffer], timeout: float) -> None:
        """Hands one message to the connection with ``endpoint``, without copying its frames. A caller that is cancelled before
        takes its message with it.

        Raises:
            InvalidRequest: ``endpoint`` is not an address that can be sent to.
            EncoderFailed: no receiver took it within ``timeout`` seconds.
        """
        self._sending[endpoint] += 1
        try:
            socket = self._socket(endpoint)
            async with asyncio.timeout(timeout):
                await socket.send_multipart(list(frames), copy=False)
        except TimeoutError as error:
            raise EncoderFailed(f"No receiver at {endpoint} took the embeddings within {timeout:g} s.") from error
        finally:
            self._sending[endpoint] -= 1
            if not self._sending[endpoint]:
                del self._sending[endpoint]
                if endpoint in self._forgotten:
                    self._close(endpoint)
                self._trim()

    def beat(self, endpoint: str, frame: bytes) -> None:
        """Sends a heartbeat by a socket that large messages cannot hold up. One that cannot leave gives way to the next.

        Raises:
            InvalidRequest: ``endpoint`` is not an address that can be sent to.
        """
        socket = self._beats.get(endpoint)
        if socket is None:
            socket = self._beats_context.socket(zmq.PUSH)
            # Of what waits for a connection only the newest is kept: an old sign of life is none.
            socket.set(zmq.CONFLATE, 1)
            self._beats[endpoint] = _connected(socket, endpoint)
        socket.send(frame, zmq.NOBLOCK)

    def forget(self, endpoint: str) -> None:
        """Nobody listens at ``endpoint`` any more: its sockets are closed, one that is sending when that ends."""
        if (beats := self._beats.pop(endpoint, None)) is not None:
            beats.close()
        if self._sending[endpoint]:
            self._forgotten.add(endpoint)
        else:
            self._close(endpoint)

    def close(self) -> None:
        """Closes all sockets; what they have not sent after a second is lost."""
        for context in (self._context, self._beats_context):
            context.destroy(linger=1000)

    def _socket(self, endpoint: str) -> zmq.asyncio.Socket:
        if endpoint in self._sockets:
            self._sockets.move_to_end(endpoint)
            return self._sockets[endpoint]
        socket = self._context.socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, self._high_water_mark)
        socket.set(zmq.IMMEDIATE, 1)  # queue for connected receivers only, so that a dead one is noticed here
        self._sockets[endpoint] = _connected(socket, endpoint)
        self._trim()
        return socket

    def _trim(self) -> None:
        """Closes what is too many. A socket that is closed cancels who sends by it, so those stay until they are idle."""
        while len(self._sockets) > self._max:
            idle = next((endpoint for endpoint in self._sockets if not self._sending[endpoint]), None)
            if idle is None:
                return
            self._close(idle)

    def _close(self, endpoint: str) -> None:
        self._forgotten.discard(endpoint)
        if (socket := self._sockets.pop(endpoint, None)) is not None:
            socket.close()


def _connected(socket: S, endpoint: str) -> S:
    """``socket``, on its way to ``endpoint``. Once closed it may send for a second more.

    Raises:
        InvalidRequest: ``endpoint`` is not an address that can be sent to.
    """
    try:
        check_endpoint(endpoint)
        socket.set(zmq.LINGER, 1000)
        socket.set(zmq.RECONNECT_IVL, 50)
        socket.set(zmq.RECONNECT_IVL_MAX, 1000)
        socket.set(zmq.IPV6, 1)
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise InvalidRequest(f"{endpoint} is not an address that can be sent to: {error}.", param="reply_to") from error
    except InvalidRequest:
        socket.close(linger=0)
        raise
    return socket


def check_endpoint(endpoint: str) -> None:
    """A destination is ``tcp://host:port`` with a host that names one machine.

    Raises:
        InvalidRequest: it is anything else.
    """
    try:
        addresses.check_endpoint(endpoint)
    except ValueError as error:
        raise InvalidRequest(str(error), param="reply_to") from error
