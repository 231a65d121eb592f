"""What an engine promises: a verified prompt in, a stream of tokens out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from services.language.models.generic import Positions
    from shared.identity import MediaItem

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Span:
    """The embeddings of ``item`` stand for the tokens from ``start`` on, ``item.num_tokens`` of them."""

    start: int
    item: MediaItem


@dataclass(frozen=True, slots=True)
class Prompt:
    """Expanded token ids, their positions, and the embeddings to splice in, in order."""

    token_ids: list[int]
    positions: Positions
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. ``temperature`` 0 is greedy. A seeded request always gives the same tokens."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate."""

    request_id: str
    prompt: Prompt
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token; the last one carries the reason why it is the last."""

    token_id: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences that the engine computes now, and those that wait for their turn."""

    running: int
    waiting: int


class Engine(Protocol):
    """An engine runs beside the event loop and never blocks it."""

    def start(self) -> None:
        """Begins to serve; called once, on the event loop."""

    async def stop(self) -> None:
        """Ends serving and frees everything; running requests end with an error."""

    def submit(self, request: EngineRequest) -> AsyncIterator[Step]:
        """Queues a request at once and returns its tokens as they come.

        Closing or abandoning the iterator cancels the request within one step and frees what it holds.

        Raises:
            EngineOverloaded: the queue is full (raised here, not by the iterator).
        """

    def load(self) -> Load:
        """How busy the engine is."""
