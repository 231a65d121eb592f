"""The encoder's end of a process that makes decoding processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import IO

_PATIENCE = 5.0  # seconds, for the end of a process that has nothing more to do


class Worker:
    """A process that has the decoders' libraries loaded, and copies itself for each file: the copy decodes that one and ends.

    So each file still has a process of its own, at a tenth of the cost. One file at a time; methods block.
    """

    def __init__(self) -> None:
        # In memory, since nobody reads it while it is written; the process bounds it.
        self._complaints: IO[bytes] = os.fdopen(os.memfd_create("epd-decoding"), "w+b")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_PATIENCE)
        self._status: int | None = None
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.encoder.sandbox"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                process_group=0,  # Ctrl-C is for the service, which ends this itself
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )

    @property
    def alive(self) -> bool:
        """Whether it can begin anything."""
        return self._process.poll() is None

    def begin(self, kind: str) -> socket.socket:
        """The connection to a new process that decodes one file of this kind."""
        self._complaints.seek(0)
        self._complaints.truncate()
        ours, theirs = socket.socketpair()
        self._status = None
        with theirs:
            socket.send_fds(self._control, [kind.encode()], [theirs.fileno()])
        return ours

    def status(self) -> int | None:
        """How that process ended, as ``subprocess`` says it, or this one before it could; None where it lives on."""
        if self._status is None:
            with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
                told = self._control.recv(16)
                self._status = int(told) if told else self._process.wait(_PATIENCE)
        return self._status

    def complaints(self) -> str:
        """What they said about it."""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace").strip() or "it said nothing"

    def end(self) -> None:
        """Ends it, and the process that it began."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._control.close()
        self._complaints.close()
