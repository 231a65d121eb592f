"""One service as a child process."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from services.loadtest.deployment.route import CannotDo

_DEATH = 10.0  # seconds until a process must be gone after SIGKILL, or stand still after SIGSTOP
_DRAIN = 30.0  # the same after SIGTERM, with what it has to finish
_MEEK = 19


def bound_to_parent(command: Sequence[str]) -> list[str]:
    """The command that runs another, which the kernel ends with the thread that started it, where the system has that."""
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *command]


class Process:
    """Started, signalled and ended. What it writes is appended to ``log``.

    ``spawner`` has one thread, which lives as long as the processes may. The kernel ends them when the thread that started them
    ends: so none stays behind when the load tester is killed, and none may be started by a thread that is gone before.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, spawner: Executor
    ) -> None:
        self.name = name
        self.log = log
        self._command = bound_to_parent(command)
        self._environment = dict(environment)
        self._folder = folder
        self._spawner = spawner
        self._child: subprocess.Popen[bytes] | None = None
        self._meek = False

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def start(self, meek: bool = False) -> None:
        """Starts it, if it does not run. A ``meek`` one lets everybody else compute first until ``settle``.

        That is for the middle of a run: it imports torch, which takes seconds of a core. On a small machine these would be
        missing to the service that goes on and to the load itself, which they would not where encoders have hosts of their own.
        """
        if self.running:
            return
        self._meek = meek
        self._child = self._spawner.submit(self._spawn, self._command).result()
        if meek:
            self._be_nice(_MEEK)

    def settle(self) -> None:
        """Gives it its share of the processors: it is up."""
        if self._meek:
            self._meek = False
            self._be_nice(0)

    def _be_nice(self, nice: int) -> None:
        """Linux shares processors out among sessions, and each service is one: what counts is how nice that is as a whole."""
        assert self._child is not None
        with contextlib.suppress(OSError):  # a system without such groups, or a process that has ended meanwhile
            Path(f"/proc/{self._child.pid}/autogroup").write_text(str(nice))

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        if self._child is not None:
            self._child.kill()
            self._gone(_DEATH, "SIGKILL")

    def terminate(self) -> None:
        """Asks it to end, and does not wait; one that is paused goes on for that."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM; returns when it has finished what is open and ended. Raises CannotDo where it does not."""
        self.terminate()
        self._gone(_DRAIN, "SIGTERM")

    def end(self) -> None:
        """Returns when it is gone, one way or another."""
        try:
            self.stop()
        except CannotDo:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP; returns when all its threads stand still. Raises CannotDo where it has ended."""
        self._must_run()
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _DEATH
        while not self._still():
            if time.monotonic() > deadline:
                raise CannotDo(f"{self.name} did not stand still within {_DEATH:g} s of SIGSTOP")
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT. Raises CannotDo where it has ended."""
        self._must_run()
        self._signal(signal.SIGCONT)

    def tail(self, lines: int = 12) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return "\n".join(text.splitlines()[-lines:])

    def ending(self) -> str:
        """How it ended, with the end of its log; empty while it runs."""
        if self._child is None or self.running:
            return ""
        return f"{self.name} ended with status {self._child.returncode}; the end of {self.log}:\n{self.tail()}"

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the load tester, which then ends its services in order
            )

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def _must_run(self) -> None:
        if not self.running:
            raise CannotDo(f"{self.name} does not run")

    def _gone(self, seconds: float, after: str) -> None:
        if self._child is None:
            return
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise CannotDo(f"{self.name} did not end within {seconds:g} s of {after}") from None

    def _still(self) -> bool:
        assert self._child is not None
        states = set()
        for task in Path(f"/proc/{self._child.pid}/task").glob("*"):
            try:
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
            except OSError:
                continue  # a thread that has ended meanwhile
        return states == {"T"}
