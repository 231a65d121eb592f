"""How completions become a response, whichever API it is of: whole, or as events from the first token on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing

from fastapi import Response
from starlette.types import Scope

from services.language.api.merge import Merged, merge
from services.language.api.sse import DONE, EventStream, event
from services.language.completion import Completion, Piece
from shared.errors import body_of, from_exception
from shared.outcome import failed
from shared.telemetry import get_logger, log_failure

_log = get_logger("api")


class Answering(ABC):
    """One answer to one request. What an API says in which event is its subclass's."""

    def __init__(self, scope: Scope, keepalive: float) -> None:
        self._scope = scope
        self._keepalive = keepalive

    @abstractmethod
    def opening(self, completions: Sequence[Completion]) -> Iterable[bytes]:
        """The events before the first piece."""

    @abstractmethod
    def chunks(self, index: int, piece: Piece) -> Iterable[bytes]:
        """The events of a piece of the ``index``-th completion."""

    @abstractmethod
    def closing(self, completions: Sequence[Completion]) -> Iterable[bytes]:
        """The events between the last piece and ``[DONE]``."""

    async def collected(self, completions: Sequence[Completion]) -> list[list[Piece]]:
        """All pieces of each completion. Cancelled, it cancels them all."""
        pieces: list[list[Piece]] = [[] for _ in completions]
        async with aclosing(merge(completions)) as merged:
            async for index, piece in merged:
                pieces[index].append(piece)
        return pieces

    async def streamed(self, completions: Sequence[Completion]) -> Response:
        """A response that streams; returned only when the first token is there."""
        merged = merge(completions)
        first = await anext(merged)
        return EventStream(self._events(completions, first, merged), self._keepalive)

    async def _events(self, completions: Sequence[Completion], first: tuple[int, Piece], rest: Merged) -> AsyncIterator[bytes]:
        async with aclosing(rest):
            try:
                for chunk in self.opening(completions):
                    yield chunk
                for chunk in self.chunks(*first):
                    yield chunk
                async for index, piece in rest:
                    for chunk in self.chunks(index, piece):
                        yield chunk
            except Exception as cause:
                # The status is sent already: the stream says what happened, and ends without [DONE].
                error = from_exception(cause)
                failed(self._scope, error)
                log_failure(_log, error, cause)
                yield event(body_of(error))
                return
        for chunk in self.closing(completions):
            yield chunk
        yield DONE
