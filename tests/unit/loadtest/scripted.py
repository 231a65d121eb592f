"""A server that does on each connection what a test tells it to, byte by byte."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

Script = Callable[["Connection"], None]


class Connection:
    """One connection, as its script sees it."""

    def __init__(self, sock: socket.socket, requests: list[bytes]) -> None:
        self.sock = sock
        self._requests = requests

    def read(self) -> bytes:
        """One whole request, also kept by the server; empty where the client has left."""
        got = b""
        while b"\r\n\r\n" not in got:
            more = self.sock.recv(65536)
            if not more:
                return b""
            got += more
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        while len(body) < length:
            body += self.sock.recv(65536)
        self._requests.append(head + b"\r\n\r\n" + body)
        return self._requests[-1]

    def say(self, status: str, body: bytes, *headers: str) -> None:
        """One whole answer."""
        lines = [f"HTTP/1.1 {status}", *headers, f"content-length: {len(body)}", "", ""]
        self.sock.sendall("\r\n".join(lines).encode() + body)

    def stream(self, *chunks: bytes, end: bool = True) -> None:
        """An event stream, chunk by chunk."""
        self.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for chunk in chunks:
            self.sock.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if end:
            self.sock.sendall(b"0\r\n\r\n")


class Server:
    """Runs ``scripts`` for the connections that come, one each, the last one for all that follow."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._scripts = scripts
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if tls else 'http'}://localhost:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Server:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            thread = threading.Thread(target=self._run, args=(sock, script), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, sock: socket.socket, script: Script) -> None:
        with contextlib.suppress(OSError):  # the client left
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            sock.settimeout(10)
            self._open.add(sock)
            script(Connection(sock, self.requests))
        self._open.discard(sock)
        sock.close()


def forever(answer: Script) -> Script:
    """The same answer to each request on a connection."""

    def script(connection: Connection) -> None:
        while connection.read():
            answer(connection)

    return script


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """A URL where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
