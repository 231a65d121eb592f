"""A plain engine: one thread that gives each running sequence a step in turn."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import torch
from transformers import Cache

from services.language.engine.interface import EngineRequest, FinishReason, Load, Step
from services.language.engine.torch.sampling import new_generator, sample
from services.language.models.generic import LanguageHalf
from shared.errors import EngineOverloaded, EpdError, InternalError
from shared.telemetry import get_logger

_log = get_logger("engine")


@dataclass(eq=False)
class _Sequence:
    """One request on its way through the engine; ``cache`` is None until it is prefilled."""

    request: EngineRequest
    generator: torch.Generator
    steps: asyncio.Queue[Step | Exception] = field(default_factory=asyncio.Queue)
    cache: Cache | None = None
    last: int = 0
    produced: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)


class TorchEngine:
    """Sequences take turns, one token each, so that a long answer does not hold up a short one."""

    def __init__(self, model: LanguageHalf, max_queue: int) -> None:
        self._model = model
        self._max_queue = max_queue
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def load(self) -> Load:
        return Load(running=len(self._running), waiting=len(self._waiting))

    def submit(self, request: EngineRequest) -> AsyncIterator[Step]:
        sequence = _Sequence(request, new_generator(request.sampling.seed))
        with self._changed:
            if len(self._waiting) + len(self._running) >= self._max_queue:
                raise EngineOverloaded(f"The engine has {self._max_queue} requests already; that is all it takes.")
            self._waiting.append(sequence)
            self._changed.notify()
        return self._steps(sequence)

    async def _steps(self, sequence: _Sequence) -> AsyncIterator[Step]:
        try:
            while True:
                step = await sequence.steps.get()
                if isinstance(step, Exception):
                    raise step
                yield step
                if step.finish_reason is not None:
                    return
        finally:
            sequence.cancelled.set()

    # ------------------------------------------------------------------------------------------- the engine's thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._waiting or self._running)
                if self._stopping:
                    break
                self._running.extend(self._waiting)
                self._waiting.clear()
            self._running = [sequence for sequence in self._running if self._advance(sequence)]
        for sequence in (*self._running, *self._waiting):
            self._deliver(sequence, InternalError("The engine is stopping."))

    def _advance(self, sequence: _Sequence) -> bool:
        """One step of one sequence; False when it has ended. A failure ends this sequence only."""
        if sequence.cancelled.is_set():
            return False
        try:
            step = self._step(sequence)
        except Exception as error:
            if not isinstance(error, EpdError):
                _log.error("engine step failed", request_id=sequence.request.request_id, exc_info=error)
            self._deliver(sequence, error)
            return False
        self._deliver(sequence, step)
        return step.finish_reason is None

    def _step(self, sequence: _Sequence) -> Step:
        prompt, sampling = sequence.request.prompt, sequence.request.sampling
        if sequence.cache is None:
            sequence.cache = self._model.new_cache()
            spans = [(span.start, span.item) for span in prompt.spans]
            logits = self._model.prefill(prompt.token_ids, prompt.positions, spans, sequence.cache)
        else:
            position = prompt.positions.following + sequence.produced - 1
            logits = self._model.decode(sequence.last, position, sequence.cache)
        sequence.last = sample(logits, sampling, sequence.generator)
        sequence.produced += 1
        reason: FinishReason | None = None
        if sequence.last in sampling.stop_token_ids:
            reason = "stop"
        elif sequence.produced >= sampling.max_tokens:
            reason = "length"
        return Step(sequence.last, reason)

    def _deliver(self, sequence: _Sequence, step: Step | Exception) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(sequence.steps.put_nowait, step)
