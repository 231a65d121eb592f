"""One answer in the making: engine tokens to text, stop strings, what the text is made of, and counts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Literal

from services.language.engine.interface import Engine, EngineRequest, Step
from services.language.output.format import CallDelta, Parts
from services.language.output.reader import MessageReader
from services.language.prompt.detokenizer import Detokenizer, StopStrings
from shared.tracing import NO_TRACES, Span, Tracer

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What is certain now, and the steps since the last piece; the last piece says why the answer ends. ``text`` is the
    answer's content, beside which there may be ``reasoning``, and ``calls`` of tools."""

    text: str
    finish_reason: FinishReason | None
    steps: tuple[Step, ...]
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


class Completion:
    """Runs one engine request. ``pieces`` is consumed once; leaving it early cancels the request. Without a ``reader`` all text
    is content."""

    def __init__(
        self,
        engine: Engine,
        request: EngineRequest,
        detokenizer: Detokenizer,
        stops: StopStrings,
        reader: MessageReader | None = None,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self._tracer = tracer
        self.prompt = request.prompt
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.reasoning_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._submitted = self._first = self._last = time.perf_counter()
        self._queued = 0.0
        self._steps = engine.submit(request)
        self._end_tokens = request.sampling.stop_token_ids
        self._detokenizer = detokenizer
        self._stops = stops
        self._reader = reader

    async def aclose(self) -> None:
        """Cancels the request, if it has not ended."""
        await self._steps.aclose()

    @property
    def stages(self) -> dict[str, float]:
        """Seconds that the engine took so far: until it began, until the first token, and from there on."""
        prefill = max(0.0, self._first - self._submitted - self._queued)
        return {"queue": self._queued, "prefill": prefill, "decode": self._last - self._first}

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer as it becomes certain, at least one piece, the last one with its reason.

        Raises:
            EpdError: the engine failed.
        """
        fresh: list[Step] = []
        async with aclosing(self._steps) as steps:
            with self._span() as span:
                async for step in steps:
                    self._count(step)
                    fresh.append(step)
                    # A token that ends the answer is not part of its text.
                    ended = step.finish_reason is not None
                    ends = step.finish_reason == "stop" and step.token_id in self._end_tokens
                    text = "" if ends else self._detokenizer.push(step.token_id)
                    if ended:
                        text += self._detokenizer.flush()
                    shown, stopped = self._stops.push(text)
                    if self.completion_tokens == 1:
                        span.event("first token")
                    if ended and not stopped:
                        shown += self._stops.flush()
                    if ended or stopped:
                        yield self._last_piece(shown, "stop" if stopped else step.finish_reason, tuple(fresh))
                        return
                    parts = self._read(shown)
                    if parts != _NOTHING or self.completion_tokens == 1:
                        # The first token is reported even if it has no text yet: it is what a stream's headers wait for.
                        yield Piece(parts.content, None, tuple(fresh), parts.reasoning, parts.calls)
                        fresh = []

    def _count(self, step: Step) -> None:
        self._last = time.perf_counter()
        if not self.completion_tokens:
            self._first, self._queued = self._last, step.queue_seconds
        self.completion_tokens += 1
        self.cached_tokens += step.cached_tokens
        if self._reader is not None and self._reader.thinking:
            self.reasoning_tokens += 1

    def _read(self, text: str) -> Parts:
        return Parts(text) if self._reader is None else self._reader.push(text)

    def _last_piece(self, text: str, reason: FinishReason | None, steps: tuple[Step, ...]) -> Piece:
        parts = self._read(text)
        content, reasoning, calls = parts.content, parts.reasoning, parts.calls
        if self._reader is not None:
            rest = self._reader.flush()
            content, reasoning, calls = content + rest.content, reasoning + rest.reasoning, (*calls, *rest.calls)
            if self._reader.called and reason == "stop":
                reason = "tool_calls"
        self.finish_reason = reason
        return Piece(content, reason, steps, reasoning, calls)

    @contextmanager
    def _span(self) -> Iterator[Span]:
        """The span of the engine's work, with its counts. A leaf, since the first piece of a stream is waited for by another
        task than the rest."""
        with self._tracer.span("engine", leaf=True, prompt_tokens=len(self.prompt.token_ids)) as span:
            try:
                yield span
            finally:
                span.set(tokens=self.completion_tokens, cached_tokens=self.cached_tokens, finish_reason=self.finish_reason)


_NOTHING = Parts()
