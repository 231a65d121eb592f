"""Sends messages to the receivers of language services: one PUSH socket a destination, a bounded number of destinations."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence

import zmq
import zmq.asyncio

from shared.errors import EncoderFailed, InvalidRequest
from shared.wire import Buffer

_ENDPOINT = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")
_WILDCARDS = ("0.0.0.0", "[::]", "*")


class Publisher:
    """Owns the sending sockets. The least recently used destination is closed when there are too many."""

    def __init__(self, max_destinations: int = 256, high_water_mark: int = 64) -> None:
        self._context = zmq.asyncio.Context()
        self._sockets: OrderedDict[str, zmq.asyncio.Socket] = OrderedDict()
        self._max = max_destinations
        self._high_water_mark = high_water_mark

    async def publish(self, endpoint: str, frames: Sequence[Buffer], timeout: float) -> None:
        """Hands one message to the connection with ``endpoint``, without copying its frames.

        Raises:
            InvalidRequest: ``endpoint`` is not an address that can be sent to.
            EncoderFailed: no receiver took it within ``timeout`` seconds.
        """
        socket = self._socket(endpoint)
        try:
            await asyncio.wait_for(socket.send_multipart(list(frames), copy=False), timeout)
        except TimeoutError as error:
            raise EncoderFailed(f"No receiver at {endpoint} took the embeddings within {timeout:g} s.") from error

    def close(self) -> None:
        """Closes all sockets; what they have not sent after a second is lost."""
        self._context.destroy(linger=1000)

    def _socket(self, endpoint: str) -> zmq.asyncio.Socket:
        if endpoint in self._sockets:
            self._sockets.move_to_end(endpoint)
            return self._sockets[endpoint]
        check_endpoint(endpoint)
        socket = self._context.socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, self._high_water_mark)
        socket.set(zmq.LINGER, 1000)
        socket.set(zmq.IMMEDIATE, 1)  # queue for connected receivers only, so that a dead one is noticed here
        socket.set(zmq.RECONNECT_IVL, 50)
        socket.set(zmq.RECONNECT_IVL_MAX, 1000)
        socket.set(zmq.IPV6, 1)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise InvalidRequest(f"{endpoint} is not an address that can be sent to: {error}.", param="reply_to") from error
        self._sockets[endpoint] = socket
        if len(self._sockets) > self._max:
            _, oldest = self._sockets.popitem(last=False)
            oldest.close(linger=1000)
        return socket


def check_endpoint(endpoint: str) -> None:
    """A destination is ``tcp://host:port`` with a host that names one machine.

    Raises:
        InvalidRequest: it is anything else.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise InvalidRequest(f"reply_to must look like tcp://host:port, not {endpoint!r}.", param="reply_to")
    if match["host"] in _WILDCARDS:
        raise InvalidRequest(f"reply_to is {endpoint}, an address to listen on, not one to send to.", param="reply_to")
