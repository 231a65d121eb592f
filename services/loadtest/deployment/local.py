"""A pair of one's own: real processes on free ports of this machine."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from services.loadtest.deployment.base import LANGUAGE, Deployment
from services.loadtest.deployment.namespaces import Namespaces, obstacle, trial
from services.loadtest.deployment.network import Conditions
from services.loadtest.deployment.process import Process
from services.loadtest.deployment.route import CannotDo, read_secret
from services.loadtest.deployment.verbs import NETWORK
from services.loadtest.ports import free_port
from services.loadtest.scenario import Action, Scenario
from shared.security import keygen

_ROOT = Path(__file__).resolve().parents[3]
_READY = 120.0  # seconds for all to come up
_DEMO_MODEL = "examples/demo_model"


class LocalPair(Deployment):
    """Encoders and a language service as child processes, with the scenario's settings.

    Where the timeline has network faults, each encoder is in a network namespace of its own, and the services have a secret.
    """

    def __init__(self, scenario: Scenario, logs: Path) -> None:
        super().__init__()
        self._pair = scenario.pair
        self._actions = scenario.actions()
        self._logs = logs
        self._stack = ExitStack()
        self._spaces: Namespaces | None = None
        self._processes: dict[str, Process] = {}
        self._addresses: dict[str, str] = {}
        self.encoders = tuple(f"encoder-{number}" for number in range(1, self._pair.encoders + 1))
        self.parts = (*self.encoders, LANGUAGE)

    def __enter__(self) -> Self:
        """Starts the pair, and returns when all encoders are ready. Raises CannotDo where they do not get so."""
        self.check_lines(self._actions)
        with self._stack as stack:
            stack.callback(super().__exit__, None, None, None)
            self._start(stack)
            self._await_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def address(self, part: str) -> str:
        return self._addresses[part]

    def unable(self, action: Action) -> str:
        if action.verb not in NETWORK:
            return ""
        if LANGUAGE in self.targets(action):
            return "the language service has no network of its own here: aim it at encoders"
        if reason := obstacle():
            return reason
        if action.options.get("by") == "network":
            return "only Docker has networks to be taken off; leave by=network out"
        return trial(Conditions.parse(action.options)) if action.verb == "slow" else ""

    def healthy(self, part: str) -> bool:
        process = self._processes[part]
        if not process.running or not super().healthy(part):
            return False
        process.settle()
        return True

    def explain(self, part: str) -> str:
        return self._processes[part].ending()

    def kill(self, part: str) -> None:
        self._processes[part].kill()

    def stop(self, part: str) -> None:
        self._processes[part].stop()

    def start(self, part: str) -> None:
        self._processes[part].start(meek=True)

    def pause(self, part: str) -> None:
        self._processes[part].pause()

    def resume(self, part: str) -> None:
        self._processes[part].resume()

    def disconnect(self, part: str, options: Mapping[str, str]) -> None:  # noqa: ARG002
        self._network().disconnect(part)

    def connect(self, part: str) -> None:
        self._network().connect(part)

    def slow(self, part: str, options: Mapping[str, str]) -> None:
        self._network().slow(part, options)

    def restore(self, part: str) -> None:
        self._network().restore(part)

    def _network(self) -> Namespaces:
        if self._spaces is None:
            raise CannotDo("this pair was started without network namespaces: its timeline has no network faults")
        return self._spaces

    def _start(self, stack: ExitStack) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        keys: dict[str, str] = {}
        if any(action.verb in NETWORK for action in self._actions):
            self._spaces = stack.enter_context(Namespaces(self.encoders))
            secret = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epd-loadtest-"))) / "secret"
            keygen(secret)
            keys = {"EPD_SECRET_FILE": str(secret)}
            self._use_secret(read_secret(secret))
        spawner = stack.enter_context(ThreadPoolExecutor(1, "loadtest-spawner"))
        stack.callback(self._end)
        for name in self.encoders:
            host, port = (self._spaces.address(name), 8001) if self._spaces else ("127.0.0.1", free_port())
            self._addresses[name] = f"http://{host}:{port}"
            settings = {"EPD_FAULTS_ENABLED": "true", "EPD_HOST": host, **keys}
            self._add(self._pair.encoder_module, name, port, settings, self._pair.encoder, spawner)
        port = free_port()
        self.url = self._addresses[LANGUAGE] = f"http://127.0.0.1:{port}"
        settings = {"EPD_ENCODERS": ",".join(self._addresses[name] for name in self.encoders), **keys}
        settings |= {"EPD_DATA_HOST": self._spaces.host} if self._spaces else {}
        self._add(self._pair.language_module, LANGUAGE, port, settings, self._pair.language, spawner)

    def _add(
        self,
        module: str,
        name: str,
        port: int,
        settings: dict[str, str],
        given: Mapping[str, object],
        spawner: ThreadPoolExecutor,
    ) -> None:
        command = [sys.executable, "-m", module, "--port", str(port), *flags(given)]
        if self._spaces is not None and name in self.encoders:
            command = self._spaces.inside(name, command)
        log = self._logs / f"{name}.log"
        log.unlink(missing_ok=True)
        self._processes[name] = Process(name, command, environment(settings), _ROOT, log, spawner)
        self._processes[name].start()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY
        while not self.ready():
            for process in self._processes.values():
                if how := process.ending():
                    raise CannotDo(f"the pair did not start: {how}")
            if time.monotonic() > deadline:
                tail = self._processes[LANGUAGE].tail()
                raise CannotDo(f"the pair was not ready within {_READY:g} s; the end of {self._logs}/language.log:\n{tail}")
            time.sleep(0.05)

    def _end(self) -> None:
        # All are asked at once, and then waited for.
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.end()


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a service: of its ``EPD_`` variables only the model, and ``settings``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EPD_")}
    model = os.environ.get("EPD_MODEL", _DEMO_MODEL)
    if Path(model).exists():  # for it will run in another folder
        model = str(Path(model).resolve())
    # Several services share the machine with the load.
    return {**clean, "EPD_MODEL": model, "EPD_THREADS": "1", **settings}


def flags(settings: Mapping[str, object]) -> Sequence[str]:
    """Settings as flags rather than variables: a service refuses a flag that it does not know, so that no typing error in a
    scenario goes unnoticed."""
    found: list[str] = []
    for name, value in settings.items():
        flag = name.lower().replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            found += [f"--{flag}", str(value)]
    return found
