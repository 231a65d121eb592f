"""One answer in the making: engine tokens to text, stop strings, and counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from services.language.engine.interface import Engine, EngineRequest, FinishReason, Step
from services.language.prompt.detokenizer import Detokenizer, StopStrings
from shared.tracing import NO_TRACES, Span, Tracer


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is certain now, and the steps since the last piece; the last piece says why the answer ends."""

    text: str
    finish_reason: FinishReason | None
    steps: tuple[Step, ...]


class Completion:
    """Runs one engine request. ``pieces`` is consumed once; leaving it early cancels the request."""

    def __init__(
        self, engine: Engine, request: EngineRequest, tokenizer: Any, stops: list[str], tracer: Tracer = NO_TRACES
    ) -> None:
        self._tracer = tracer
        self.prompt_token_ids = request.prompt.token_ids
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._steps = engine.submit(request)
        self._end_tokens = request.sampling.stop_token_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)

    async def aclose(self) -> None:
        """Cancels the request, if it has not ended."""
        await self._steps.aclose()

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer's text as it becomes certain, at least one piece, the last one with its reason.

        Raises:
            EpdError: the engine failed.
        """
        fresh: list[Step] = []
        async with aclosing(self._steps) as steps:
            with self._span() as span:
                async for step in steps:
                    self.completion_tokens += 1
                    self.cached_tokens += step.cached_tokens
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
                    if stopped:
                        self.finish_reason = "stop"
                        yield Piece(shown, "stop", tuple(fresh))
                        return
                    if ended:
                        self.finish_reason = step.finish_reason
                        yield Piece(shown + self._stops.flush(), step.finish_reason, tuple(fresh))
                    elif shown or self.completion_tokens == 1:
                        # The first token is reported even if it has no text yet: it is what a stream's headers wait for.
                        yield Piece(shown, None, tuple(fresh))
                        fresh = []

    @contextmanager
    def _span(self) -> Iterator[Span]:
        """The span of the engine's work, with its counts. A leaf, since the first piece of a stream is waited for by another
        task than the rest."""
        with self._tracer.span("engine", leaf=True, prompt_tokens=len(self.prompt_token_ids)) as span:
            try:
                yield span
            finally:
                span.set(tokens=self.completion_tokens, cached_tokens=self.cached_tokens, finish_reason=self.finish_reason)
