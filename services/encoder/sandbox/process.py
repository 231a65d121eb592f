"""The encoder's end of decoding processes."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from typing import NoReturn, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.encoder.sandbox.messages import Answer, Done, Found, Order, Piece, Refused, Wanted
from services.encoder.sandbox.worker import Worker
from shared.errors import InvalidMedia

_WORDS = {"sound": "sound", "soundtrack": "sound", "video": "video", "heic": "picture"}
Number = TypeVar("Number", bound=np.generic)
_answer = msgspec.json.Decoder(Answer)


@dataclass(frozen=True, slots=True)
class Effort:
    """What decoding one file may take: ``seconds`` of processor time, and ``memory`` in bytes."""

    seconds: float = 20.0
    memory: int = 2**30


class Sandbox:
    """Decodes files, each in a process of its own, which may take this ``effort``. If it ``keeps`` the workers that make those,
    there are as many as files were decoded at once. For any thread."""

    def __init__(self, effort: Effort | None = None, keeps: bool = False) -> None:
        self.effort = effort or Effort()
        self._keeps = keeps
        self._idle: list[Worker] = []

    @contextmanager
    def decoding(self, order: Order, data: bytes, param: str | None) -> Iterator[Decoding]:
        """Around the decoding of ``data``, whose process is gone afterwards. Blocks, so not for the event loop.

        Raises:
            InvalidMedia: the file is not what it should be, or takes more than it may.
            RuntimeError: the process failed.
        """
        worker, again = self._worker(), False
        try:
            with worker.begin(order.kind) as connection, connection.makefile("rb") as answers:
                decoding = Decoding(worker, connection, answers, order, param)
                decoding.send(order, data)
                yield decoding
            again = worker.status() == 0 and self._keeps
        finally:
            if again:
                self._idle.append(worker)
            else:  # which it is after every failure
                worker.end()

    def _worker(self) -> Worker:
        while (worker := self._idle_one()) is not None:
            if worker.alive:
                return worker
            worker.end()
        return Worker()

    def _idle_one(self) -> Worker | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Keeps none any more."""
        self._keeps = False
        while (worker := self._idle_one()) is not None:
            worker.end()


class Decoding:
    """One file's decoding.

    Raises (all of its methods):
        InvalidMedia: the file is not what it should be, or takes more than it may.
        RuntimeError: the process failed.
    """

    def __init__(
        self, worker: Worker, connection: socket.socket, answers: BufferedReader, order: Order, param: str | None
    ) -> None:
        self._worker = worker
        self._connection = connection
        self._answers = answers
        self._order = order
        self._param = param

    def send(self, message: Order | Wanted, data: bytes = b"") -> None:
        """Says something, with ``data`` behind it."""
        with self._connected():
            self._connection.sendall(msgspec.json.encode(message) + b"\n")
            self._connection.sendall(data)

    def receive(self) -> Found | Piece | Done:
        """The next answer."""
        with self._connected():
            line = self._answers.readline()
        if not line.endswith(b"\n"):
            self._ended()
        answer = _answer.decode(line)
        if isinstance(answer, Refused):
            raise InvalidMedia(answer.reason, param=self._param)
        return answer

    def fill(self, view: memoryview) -> None:
        """Reads the bytes behind an answer: as many as ``view`` has."""
        while view.nbytes:
            with self._connected():
                read = self._answers.readinto(view)
            if not read:
                self._ended()
            view = view[read:]

    def only(self, kind: type[Number]) -> NDArray[Number]:
        """The one array that is the whole answer."""
        piece = self.receive()
        assert isinstance(piece, Piece)
        found = np.empty(piece.shape, kind)
        self.fill(found.data.cast("B"))
        assert isinstance(self.receive(), Done)
        return found

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            self._ended()

    def _ended(self) -> NoReturn:
        """Raises what the end of the process means."""
        status = self._worker.status()
        if status == -signal.SIGXCPU:
            word, seconds = _WORDS[self._order.kind], self._order.seconds
            text = f"The {word} takes more than the {seconds:g} seconds of processor time that decoding it may take."
            raise InvalidMedia(f"{text} Send a shorter or smaller one.", param=self._param)
        raise RuntimeError(f"the decoder ended with status {status}: {self._worker.complaints()}")
