"""What an engine promises: a verified prompt in, a stream of tokens out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from services.language.models.generic import Positions
    from shared.identity import MediaItem

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of ``item``'s embeddings from ``offset`` on stand for the ``tokens`` tokens from ``start`` on. An item whose
    tokens are parted by ordinary ones has several spans, in order."""

    start: int
    item: MediaItem
    offset: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """Expanded token ids, their positions, and the embeddings to splice in, in order."""

    token_ids: list[int]
    positions: Positions
    spans: tuple[Span, ...] = ()

    @property
    def embedding_bytes(self) -> int:
        """What its items' embeddings take, each item once."""
        return sum(span.item.embedding_bytes for span in self.spans if span.offset == 0)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 leave all tokens in. ``repetition_penalty`` covers
    prompt and answer (Keskar et al., 2019), ``presence_penalty`` and ``frequency_penalty`` the answer (OpenAI's definition). A
    request with a ``seed`` gives the same tokens whatever it is batched with. ``stop_token_ids`` end the answer, but not before
    ``min_tokens``. ``logprobs`` asks for that many alternatives beside each chosen token's log-probability, before any of the
    above is applied.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate, within ``timeout`` seconds if given; past it the stream raises ``EngineOverloaded``.

    ``grammar`` is what the whole answer has to match, in llguidance's Lark. No token that it forbids is chosen, whatever
    ``sampling`` says; the answer ends with "stop" where it allows nothing more, and ends of it count only where it allows them.
    """

    request_id: str
    prompt: Prompt
    sampling: Sampling
    timeout: float | None = None
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probability of the chosen token, and of the most likely ones as ``(token id, log-probability)``."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token; the last one carries the reason why it is the last.

    ``cached_tokens`` counts the prompt's tokens that needed no computation, and ``queue_seconds`` is the time from the
    request's arrival to the first computation for it; both are told with the first token.
    """

    token_id: int
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    cached_tokens: int = 0
    queue_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an engine is. Blocks are of the key/value pool; prefix tokens are counted since the start."""

    running: int
    waiting: int
    blocks_used: int = 0
    blocks_total: int = 0
    prefix_tokens_asked: int = 0
    prefix_tokens_found: int = 0
    preemptions: int = 0


class TokenStream(Protocol):
    """The tokens of one request as they come. Left early, it is closed, which cancels the request; begun or not."""

    def __aiter__(self) -> TokenStream: ...

    async def __anext__(self) -> Step:
        """The next token.

        Raises:
            StopAsyncIteration: the last one was given.
            EpdError: the engine failed, is stopping, or did not finish in time.
        """

    async def aclose(self) -> None:
        """Cancels the request within one step and frees what it holds; does nothing to one that has ended."""


class Engine(Protocol):
    """An engine runs beside the event loop and never blocks it."""

    async def start(self) -> None:
        """Returns when the engine takes requests.

        Raises:
            EngineStartError: it never will, with the reason in a sentence.
        """

    async def stop(self) -> None:
        """Ends serving and frees everything; running requests end with an error."""

    def abort(self, reason: str) -> None:
        """Ends all requests with ``EngineOverloaded``; new ones are still taken."""

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queues a request at once and returns its tokens as they come.

        Raises (here, not by the stream):
            EngineOverloaded: the queue is full, or the engine is being restarted.
            InvalidRequest: the request could never fit, with the numbers.
        """

    def ready(self) -> bool:
        """Whether requests are taken now."""

    def parameters(self) -> dict[str, int]:
        """Numbers of parameters by module, once started."""

    def load(self) -> Load:
        """How busy the engine is."""


class EngineStartError(RuntimeError):
    """The engine cannot serve this model, or cannot start; the message says why."""
