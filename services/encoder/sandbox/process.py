"""The encoder's end of a decoding process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import IO, NoReturn

import msgspec

from services.encoder.sandbox.messages import Answer, Done, Found, Order, Piece, Refused, Wanted
from shared.errors import InvalidMedia

_WORDS = {"sound": "sound", "soundtrack": "sound", "video": "video", "heic": "picture"}
_answer = msgspec.json.Decoder(Answer)


@dataclass(frozen=True, slots=True)
class Effort:
    """What decoding one file may take: ``seconds`` of processor time, and ``memory`` in bytes."""

    seconds: float = 20.0
    memory: int = 2**30


class Decoding:
    """One file's decoding. A context manager, at whose end the process is gone. Blocks, so not for the event loop.

    Raises (all of its methods):
        InvalidMedia: the file is not what it should be, or takes more than it may.
        RuntimeError: the process failed.
    """

    def __init__(self, order: Order, data: bytes, param: str | None) -> None:
        self._order = order
        self._data = data
        self._param = param

    def __enter__(self) -> Decoding:
        # In memory, since nobody reads it while it is written; the process bounds it.
        self._complaints: IO[bytes] = os.fdopen(os.memfd_create("epd-decoding"), "w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.encoder.sandbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            process_group=0,  # Ctrl-C is for the service, which ends this itself
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.send(self._order, self._data)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._in, self._out, self._complaints):
            try:
                file.close()
            except BrokenPipeError:
                continue  # of what was still to be sent

    def send(self, message: Order | Wanted, data: bytes = b"") -> None:
        """Says something, with ``data`` behind it."""
        try:
            self._in.write(msgspec.json.encode(message) + b"\n")
            self._in.write(data)
            self._in.flush()
        except BrokenPipeError:
            self._ended()

    def receive(self) -> Found | Piece | Done:
        """The next answer."""
        line = self._out.readline()
        if not line.endswith(b"\n"):
            self._ended()
        answer = _answer.decode(line)
        if isinstance(answer, Refused):
            raise InvalidMedia(answer.reason, param=self._param)
        return answer

    def fill(self, view: memoryview) -> None:
        """Reads the bytes behind an answer: as many as ``view`` has."""
        while view.nbytes:
            read = self._out.readinto(view)  # type: ignore[attr-defined]
            if not read:
                self._ended()
            view = view[read:]

    def _ended(self) -> NoReturn:
        """Raises what the end of the process means."""
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            status = 0  # it closed its output, and lives on
        if status == -signal.SIGXCPU:
            word, seconds = _WORDS[self._order.kind], self._order.seconds
            text = f"The {word} takes more than the {seconds:g} seconds of processor time that decoding it may take."
            raise InvalidMedia(f"{text} Send a shorter or smaller one.", param=self._param)
        self._complaints.seek(0)
        text = self._complaints.read().decode(errors="replace").strip()
        raise RuntimeError(f"the decoder ended with status {status}: {text or 'it said nothing'}")
