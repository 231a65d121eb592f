"""Somebody on the wire: a TCP relay that passes everything on and keeps what it saw."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class Relay:
    """Listens on ``listen`` and connects each caller with ``target``. ``said`` has what each connection's caller sent, in the
    order of the connections."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._listening = socket.create_server(listen)
        self.port = int(self._listening.getsockname()[1])
        self._target = target
        self._sockets: list[socket.socket] = []
        self.said: list[bytearray] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def seen(self) -> bytes:
        """All that callers sent."""
        return b"".join(bytes(one) for one in list(self.said))

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
                service = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [caller, service]
            self.said.append(kept := bytearray())
            for source, sink, kept_of in ((caller, service, kept), (service, caller, None)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, kept_of), daemon=True)
                self._threads.append(thread)
                thread.start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if kept is not None:
                    kept += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Relay:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for one in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)
