"""Connections to one server, kept open between requests: geventhttpclient's, with what a load test has to know of them."""

from __future__ import annotations

import socket
import struct
from typing import Protocol, cast

from gevent.monkey import get_original
from geventhttpclient.connectionpool import ConnectionPool, SSLConnectionPool
from geventhttpclient.response import HTTPConnectionClosed, HTTPSocketPoolResponse

_BYTES_ACKED = 120  # tcpi_bytes_acked in Linux's struct tcp_info
_INFO_SIZE = 128
_READ_SIZE = 1 << 16


class Pool(Protocol):
    """How connections are made, and let go."""

    def connect(self) -> socket.socket: ...


class _Plain(ConnectionPool):  # type: ignore[misc]
    def after_connect(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self) -> socket.socket:
        return cast(socket.socket, self._create_socket())


class _Encrypted(_Plain, SSLConnectionPool):  # type: ignore[misc]
    pass


class Connections:
    """Sends requests over connections that are idle, the one used last first, or over new ones.

    They have no timeouts: who sends sets one around the whole exchange. There are as many as requests at once. Encrypted ones
    trust the authorities that the system does, or those of the file that ``SSL_CERT_FILE`` names.
    """

    def __init__(self, host: str, port: int, *, encrypted: bool = False) -> None:
        make = _Encrypted if encrypted else _Plain
        self._pool: Pool = make(host, port, host, port, connection_timeout=None, network_timeout=None)
        self._idle: list[socket.socket] = []
        self._poll = get_original("select", "poll")  # gevent's own would yield

    def send(self, message: bytes) -> HTTPSocketPoolResponse:
        """Sends a request, once, and returns when the head of its answer is there.

        A server may close an idle connection at the very moment at which it is used again; that is nobody's failure. So what
        found its connection closed is sent over a new one, but only if TCP says that the server's host took not one byte of it:
        whoever reads a request and then closes the connection is not asked twice.

        Raises:
            OSError, http.client.HTTPException: the connection could not be made, or broke, or no HTTP came.
        """
        while self._idle:
            sock = self._idle.pop()
            if self._closed(sock):
                sock.close()
                continue
            loan = _Loan(self._idle, _acknowledged(sock))
            try:
                return _exchange(sock, loan, message)
            except (OSError, HTTPConnectionClosed):
                if not loan.untouched:
                    raise
                break  # no other idle one, which will have been closed as well
        return _exchange(self._pool.connect(), _Loan(self._idle, None), message)

    def close(self) -> None:
        """Closes those that are idle."""
        while self._idle:
            self._idle.pop().close()

    def _closed(self, sock: socket.socket) -> bool:
        """Whether there is anything to read where nothing should be: the server's goodbye."""
        poll = self._poll()
        poll.register(sock.fileno(), 1)  # POLLIN
        return bool(poll.poll(0))


class _Loan:
    """What geventhttpclient's response takes for its pool: gets one connection back."""

    __slots__ = ("_acknowledged", "_idle", "untouched")

    def __init__(self, idle: list[socket.socket], acknowledged: int | None) -> None:
        self._idle = idle
        self._acknowledged = acknowledged
        self.untouched = False
        """Whether the server is known to have taken nothing of what was sent."""

    def return_socket(self, sock: socket.socket) -> None:
        """It may be used again."""
        self._idle.append(sock)

    def release_socket(self, sock: socket.socket) -> None:
        """It may not."""
        self.untouched = self._acknowledged is not None and _acknowledged(sock) == self._acknowledged
        sock.close()


def _exchange(sock: socket.socket, loan: _Loan, message: bytes) -> HTTPSocketPoolResponse:
    try:
        sock.sendall(message)
    except (BrokenPipeError, ConnectionResetError):
        # The server may have answered before it had read all, and closed. If it has not, what this raises will do as well.
        pass
    except BaseException:
        loan.release_socket(sock)
        raise
    return HTTPSocketPoolResponse(sock, loan, block_size=_READ_SIZE, method="POST")


def _acknowledged(sock: socket.socket) -> int | None:
    """Bytes that the other host's TCP took on this connection; None where the system does not say."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
    except (AttributeError, OSError):
        return None
    return struct.unpack_from("<Q", info, _BYTES_ACKED)[0] if len(info) == _INFO_SIZE else None
