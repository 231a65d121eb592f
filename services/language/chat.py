"""The life of a chat request between the API and the engine: validate, gather embeddings, expand, submit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from services.language.completion import Completion
from services.language.deadline import Deadline
from services.language.embeddings.gather import Gatherer
from services.language.engine.interface import Engine, EngineRequest, Prompt, Sampling
from services.language.models.facts import LanguageFacts
from services.language.output.shape import Shape
from services.language.prompt.builder import PromptBuilder
from services.language.prompt.detokenizer import Detokenizer, StopStrings
from services.language.prompt.expansion import named
from services.language.request import ChatRequest
from services.language.settings import LanguageSettings
from services.language.workers import Workers
from shared.errors import EncoderOverloaded, EngineOverloaded, InvalidRequest
from shared.identity import ContentHasher, MediaItem
from shared.lifecycle import Drain
from shared.pace import Pace
from shared.telemetry import Metrics
from shared.tracing import NO_TRACES, Tracer

_THREADS = 2
_SLACK = 0.25  # seconds


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the engine gets: the ``prompt`` with its ``items``, in the order of their places, and how it is answered."""

    prompt: Prompt
    items: list[MediaItem]
    sampling: Sampling
    shape: Shape


class ChatService:
    """Everything that happens before the first token. Whatever fails here fails before any response header is sent."""

    def __init__(
        self,
        settings: LanguageSettings,
        model: LanguageFacts,
        gatherer: Gatherer,
        engine: Engine,
        drain: Drain,
        hasher: ContentHasher,
        metrics: Metrics,
        tracer: Tracer = NO_TRACES,
        fingerprint: str = "",
    ) -> None:
        self._tracer = tracer
        self._fingerprint = fingerprint
        self._drain = drain
        self._settings = settings
        self._model = model
        self._gatherer = gatherer
        self._engine = engine
        self._builder = PromptBuilder(model, hasher, settings.max_media_bytes, metrics, tracer)
        self._admitted, self._pictured = Pace(), Pace()
        # Few, since more would only take the interpreter from each other and from the event loop. Grammars have their own: one
        # that takes long keeps no text waiting.
        self._workers = Workers(_THREADS, "prompt")
        self._compilers = Workers(1, "grammar")

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together."""
        return self._model.context_length

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        return self._model.tokenizer

    @property
    def fingerprint(self) -> str:
        """What answers depend on besides the request: the model, which both services must agree on, and this service."""
        return self._fingerprint

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A place among the requests that are prepared or answered; held until the answer, or its stream, begins.

        Raises:
            EngineOverloaded: there is none, or the service is ending; nothing of the request was read yet.
        """
        self._drain.check()
        if self._admitted.open >= self._settings.max_queue:
            text = f"{self._admitted.open} requests are in work; that is all this service takes."
            raise EngineOverloaded(text, retry_after=self._admitted.time_for(1))
        self._admitted.begin()
        try:
            yield
        finally:
            self._admitted.end()

    async def start(self, request: ChatRequest) -> list[Completion]:
        """Submits the request to the engine once all its embeddings arrived and verified; one completion an answer.

        Raises:
            ClientError: the request, its size, or its media is at fault.
            Unavailable: embeddings or a place in the engine cannot be had.
        """
        async with self._in_time(request.deadline), self._prepared(request) as ready:
            return await self._submit(request, ready)

    async def render(self, request: ChatRequest) -> Prepared:
        """What ``start`` would give to the engine.

        Raises:
            ClientError, Unavailable: as ``start`` does.
        """
        async with self._in_time(request.deadline), self._prepared(request) as ready:
            return ready

    async def tokenize(self, request: ChatRequest) -> list[int]:
        """The prompt's tokens, with one placeholder for each media item, of which nothing is asked.

        Raises:
            InvalidRequest: it is too long, or its template refuses it.
            EngineOverloaded: it takes longer than the request may.
        """
        async with self._in_time(request.deadline):
            return (await self._workers.run(self._builder.tokenized, request, request.conversation.kinds))[0]

    async def detokenize(self, token_ids: Sequence[int], deadline: Deadline) -> str:
        """The text of tokens, special ones included.

        Raises:
            InvalidRequest: there are more than the context has, or there is no such token.
            EngineOverloaded: it takes longer than until the ``deadline``.
        """
        self._builder.check_size(len(token_ids), None)
        known = len(self.tokenizer)
        if unknown := [token for token in token_ids if token >= known]:
            raise InvalidRequest(f"There is no token {unknown[0]}; the vocabulary has {known}.", param="tokens")
        async with self._in_time(deadline):
            text: str = await self._workers.run(self.tokenizer.decode, token_ids)
        return text

    @asynccontextmanager
    async def _in_time(self, deadline: Deadline) -> AsyncIterator[None]:
        """Ends what takes longer than until a request's ``deadline``.

        Raises:
            EngineOverloaded: it does.
        """
        try:
            # A little later than the deadlines of what is waited for, which have more to say.
            async with asyncio.timeout(max(0.0, deadline.left()) + _SLACK):
                yield
        except TimeoutError as error:
            raise EngineOverloaded("The deadline passed before the prompt was ready: the service is too busy.") from error

    @asynccontextmanager
    async def _prepared(self, request: ChatRequest) -> AsyncIterator[Prepared]:
        """The request with all its embeddings, which count as held until the block ends."""
        media = request.conversation.media
        if len(media) > self._settings.max_items_per_request:
            limit = self._settings.max_items_per_request
            text = f"The request has {named(request.conversation.kinds)}; at most {limit} are accepted."
            raise InvalidRequest(text, param="messages")
        sampling = request.sampling
        for name, tokens in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            if (unknown := max(tokens, default=0)) >= self._model.vocab_size:
                text = f"{name} names token {unknown}; the vocabulary has {self._model.vocab_size}."
                raise InvalidRequest(text, param=name)
        with self._with_pictures(len(media)), self._gatherer.holding() as holding:
            read = await self._workers.run(self._builder.read, request)
            shape = await self._shape(request, read.token_ids)
            deadline = request.deadline.lowered(self._settings.embedding_timeout, own=True)
            with self._builder.stages.labels("embeddings").time(), request.timeline.stage("embeddings"):
                items = await self._gatherer.gather(
                    request.request_id, read.sources, read.room, deadline, request.forwarded, holding, request.timeline
                )
            prompt = await self._workers.run(self._builder.prompt, request, read.token_ids, items)
            self._builder.check_size(len(prompt.token_ids), request.max_tokens)
            yield Prepared(prompt, items, self._completed(request, prompt), shape)

    @contextmanager
    def _with_pictures(self, items: int) -> Iterator[None]:
        """A place among the requests with pictures. However slow encoders are, there is one for text too; and one for pictures
        that wait for no encoder, since they are known.

        Raises (on entering):
            EncoderUnavailable, EncoderOverloaded: there is none, or it is sure that no embeddings can be had now.
        """
        if not items:
            yield
            return
        self._gatherer.check(items)
        if self._pictured.open >= self._settings.picture_places():
            text = f"{self._pictured.open} requests with pictures are in work already."
            raise EncoderOverloaded(text, retry_after=self._pictured.time_for(1))
        self._pictured.begin()
        try:
            yield
        finally:
            self._pictured.end()

    async def _shape(self, request: ChatRequest, token_ids: Sequence[int]) -> Shape:
        """What the answers have to look like."""
        if request.answer_format is None and not request.conversation.tools:
            return self._builder.shape(request, token_ids)  # there is no grammar to be made
        return await self._compilers.run(self._builder.shape, request, token_ids)

    def _completed(self, request: ChatRequest, prompt: Prompt) -> Sampling:
        """The request's sampling with what is known now: its token limit, and what ends the answer."""
        wanted = request.sampling
        return replace(
            wanted,
            max_tokens=request.max_tokens or self._model.context_length - len(prompt.token_ids),
            stop_token_ids=wanted.stop_token_ids | (frozenset() if request.ignore_eos else self._model.eos_ids),
        )

    async def _submit(self, request: ChatRequest, ready: Prepared) -> list[Completion]:
        completions: list[Completion] = []
        try:
            for number in range(request.answers):
                completions.append(self._completion(request, ready, number))
        except BaseException:
            for completion in completions:
                await completion.aclose()
            raise
        return completions

    def _completion(self, request: ChatRequest, ready: Prepared, number: int) -> Completion:
        """The ``number``-th answer; answers of a seeded request have seeds of their own, in order."""
        sampling, shape = ready.sampling, ready.shape
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + number)
        call = EngineRequest(request.request_id, ready.prompt, sampling, request.deadline.left(), shape.grammar)
        detokenizer = Detokenizer(self._model.tokenizer, shape.kept)
        stops = StopStrings(request.stops, request.with_stop)
        return Completion(self._engine, call, detokenizer, stops, shape.reader(), self._tracer)
