"""An engine that is a process of its own, as the language service sees it: watched, and restarted when it dies."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec
import zmq
import zmq.asyncio

from services.language.engine.ending import terminate
from services.language.engine.interface import EngineRequest, EngineStartError, Load, Step
from services.language.engine.messages import (
    Cancel,
    Config,
    Fault,
    Outcomes,
    Ready,
    Refused,
    decode_from_engine,
    encode,
    submission,
)
from services.language.engine.options import EngineOptions
from shared.errors import EngineOverloaded, EpdError, InternalError, InvalidRequest
from shared.telemetry import get_logger

_log = get_logger("engine")

_LONGEST_PAUSE = 10.0

_FAULTS: dict[Fault, Callable[[str], EpdError]] = {
    "engine": lambda message: InternalError(f"The engine failed: {message}."),
    "grammar": lambda message: InvalidRequest(f"The grammar that the answer must match cannot be followed: {message}."),
    "request": lambda message: InvalidRequest(f"The engine does not serve the request: {message}."),
}
"""A grammar is the client's, as is what the engine does not do; all else that ends a sequence is ours."""


class _Answer:
    """The tokens of one request on their way to whoever asked."""

    def __init__(self, cancel: Callable[[], None], embedding_bytes: int) -> None:
        self._cancel = cancel
        self._ended = False
        self.embedding_bytes = embedding_bytes
        self.tokens = 0
        self.timer: asyncio.TimerHandle | None = None
        self._steps: asyncio.Queue[Step | Exception] = asyncio.Queue()

    def put(self, step: Step | Exception) -> None:
        self.tokens += 1
        self._steps.put_nowait(step)

    def __aiter__(self) -> _Answer:
        return self

    async def __anext__(self) -> Step:
        if self._ended:
            raise StopAsyncIteration
        try:
            step = await self._steps.get()
        except BaseException:
            await self.aclose()
            raise
        if isinstance(step, Exception):
            self._ended = True
            raise step
        self._ended = step.finish_reason is not None
        return step

    async def aclose(self) -> None:
        if not self._ended:
            self._ended = True
            self._cancel()


class ProcessEngine:
    """Owns an engine's process and the socket to it. A process that dies ends its requests with an error and is replaced.

    An engine says with ``worker`` which module the process runs, called with a ``Config``, and with ``patience`` how many
    seconds it takes at most to end in order. Its processes are a group of their own, of which none stays behind.
    """

    worker: ClassVar[str]
    patience: ClassVar[float] = 3.0

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._context = zmq.asyncio.Context()
        self._folder = Path(tempfile.mkdtemp(prefix="epd-engine-"))
        self._numbers = itertools.count()
        self._embedding_bytes = 0
        self._answers: dict[int, _Answer] = {}
        self._socket: zmq.asyncio.Socket | None = None
        self._info: Ready | None = None
        self._load = Load(0, 0)
        self._keeper: asyncio.Task[None] | None = None
        self.restarts = 0

    async def start(self) -> None:
        process, socket = await self._launch()
        self._keeper = asyncio.create_task(self._keep(process, socket), name="engine keeper")

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._end_all("The engine is stopping.")
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def ready(self) -> bool:
        return self._socket is not None

    def parameters(self) -> dict[str, int]:
        return {} if self._info is None else self._info.parameters

    def load(self) -> Load:
        return self._load

    def submit(self, request: EngineRequest) -> _Answer:
        if self._socket is None or self._info is None:
            raise EngineOverloaded("The engine is being restarted.")
        if len(self._answers) >= self._options.max_queue:
            raise EngineOverloaded(f"The engine has {len(self._answers)} requests already; that is all it takes.")
        size = request.prompt.embedding_bytes
        if self._embedding_bytes + size > self._options.max_embedding_bytes and self._answers:
            text = f"The engine holds {self._embedding_bytes} bytes of embeddings already; {size} more are too many."
            raise EngineOverloaded(text)
        needed = len(request.prompt.token_ids) + request.sampling.max_tokens
        if needed > self._info.capacity:
            raise InvalidRequest(
                f"The prompt has {len(request.prompt.token_ids)} tokens and the answer up to {request.sampling.max_tokens}, "
                f"together {needed}; the engine's memory holds {self._info.capacity}."
            )
        number = next(self._numbers)
        answer = self._answers[number] = _Answer(lambda: self._cancel(number), size)
        self._embedding_bytes += size
        if request.timeout is not None:
            answer.timer = asyncio.get_running_loop().call_later(max(0.0, request.timeout), self._expire, number)
        self._send(submission(number, request))
        return answer

    def abort(self, reason: str) -> None:
        for number, answer in list(self._answers.items()):
            self._cancel(number)
            answer.put(EngineOverloaded(reason))

    def _cancel(self, number: int) -> None:
        if self._take(number) is not None:
            self._send([encode(Cancel(number))])

    def _expire(self, number: int) -> None:
        """The request's time is over: it ends here and in the engine's process."""
        answer = self._answers[number]
        self._cancel(number)
        answer.put(EngineOverloaded(f"The deadline passed when {answer.tokens} tokens of the answer were there."))

    def _take(self, number: int) -> _Answer | None:
        """Takes a request that has ended out of the books."""
        answer = self._answers.pop(number, None)
        if answer is not None:
            self._embedding_bytes -= answer.embedding_bytes
            if answer.timer is not None:
                answer.timer.cancel()
        return answer

    def _send(self, frames: list[object]) -> None:
        """The queue to the process has no bound of its own; ``max_queue`` bounds it."""
        if self._socket is not None:
            self._socket.send_multipart(frames, copy=False)

    # ------------------------------------------------------------------------------------------- the process's life

    def environment(self) -> dict[str, str]:
        """Variables that the process has besides ours.

        Raises:
            EngineStartError: there is no such process on this machine.
        """
        return {}

    async def _launch(self) -> tuple[Process, zmq.asyncio.Socket]:
        """Starts a process and returns when it serves.

        Raises:
            EngineStartError: it refused, or ended.
        """
        endpoint = f"ipc://{self._folder}/{next(self._numbers)}"
        socket = self._context.socket(zmq.PAIR)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.bind(endpoint)
        config = msgspec.json.encode(Config(endpoint, self._options)).decode()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self.worker, config),
            stdin=PIPE,
            env=os.environ | self.environment(),
            start_new_session=True,
        )
        first = asyncio.ensure_future(socket.recv())
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait([first, ended], return_when=asyncio.FIRST_COMPLETED)
            message = decode_from_engine(first.result()) if first.done() else None
        except BaseException:
            await terminate(process, self.patience)
            raise
        finally:
            ended.cancel()
            first.cancel()
        if isinstance(message, Ready):
            self._info, self._socket = message, socket
            return process, socket
        socket.close(linger=0)
        await terminate(process, self.patience)
        reason = message.reason if isinstance(message, Refused) else f"its process ended with status {process.returncode}"
        raise EngineStartError(f"The engine cannot start: {reason}")

    async def _keep(self, process: Process, socket: zmq.asyncio.Socket) -> None:
        """Serves one process after another until cancelled."""
        alive = True
        try:
            while True:
                receiving = asyncio.create_task(self._receive(socket))
                ended = asyncio.create_task(process.wait())
                try:
                    await asyncio.wait([receiving, ended], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    receiving.cancel()
                    ended.cancel()
                    await asyncio.gather(receiving, return_exceptions=True)
                self._socket = None
                socket.close(linger=0)
                requests = len(self._answers)
                self._end_all("The engine's process ended unexpectedly; it is being restarted.")
                await terminate(process, self.patience)
                _log.error("engine process ended", status=process.returncode, requests=requests)
                alive = False  # its number may by now be another's
                process, socket = await self._relaunch()
                alive = True
        finally:
            self._socket = None
            if alive:
                await terminate(process, self.patience)

    async def _relaunch(self) -> tuple[Process, zmq.asyncio.Socket]:
        pause = 0.1
        while True:
            self.restarts += 1
            try:
                return await self._launch()
            except Exception as error:
                # Whatever it is (no more processes, no more memory), it may pass; without a keeper it would be for ever.
                _log.error("engine does not come back", reason=str(error) or type(error).__name__, pause=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        """Until the process says that it will do no more, which it may before it ends."""
        while True:
            message = decode_from_engine(await socket.recv())
            if isinstance(message, Refused):
                _log.error("engine gives up", reason=message.reason)
                return
            assert isinstance(message, Outcomes)
            self._load = message.load
            for outcome in message.outcomes:
                answer = self._answers.get(outcome.number)
                if answer is None:
                    continue  # cancelled meanwhile
                if outcome.step is None:
                    assert outcome.failure is not None
                    self._take(outcome.number)
                    answer.put(_FAULTS[outcome.failure.fault](outcome.failure.message))
                    continue
                if outcome.step.finish_reason is not None:
                    self._take(outcome.number)
                answer.put(outcome.step)

    def _end_all(self, reason: str) -> None:
        for number, answer in list(self._answers.items()):
            self._take(number)
            answer.put(InternalError(reason))
        self._load = Load(0, 0)
