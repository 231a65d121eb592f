"""The life of a chat request between the API and the engine: validate, gather embeddings, expand, submit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from services.language.completion import Completion
from services.language.deadline import Deadline
from services.language.embeddings.gather import Gatherer
from services.language.engine.interface import Engine, EngineRequest, Prompt, Sampling
from services.language.models.facts import LanguageFacts
from services.language.prompt.conversation import Conversation, MediaSource
from services.language.prompt.expansion import check_modalities, check_placeholders, edges_of, expand, in_places, named
from services.language.prompt.pretokenized import check_given, place_items
from services.language.prompt.sources import prepare_sources
from services.language.prompt.template import ChatTemplate
from services.language.settings import LanguageSettings
from shared.errors import EncoderOverloaded, EngineOverloaded, InvalidRequest
from shared.identity import ContentHasher, MediaItem, Modality
from shared.lifecycle import Drain
from shared.pace import Pace
from shared.telemetry import Metrics
from shared.tracing import NO_TRACES, Span, Tracer

_THREADS = 2
_SLACK = 0.25  # seconds

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the API asks of the pair, free of HTTP.

    ``max_tokens`` None means as many as the context has room for; it and the model's end tokens complete ``sampling``.
    ``deadline`` is that of the whole answer; ``forwarded`` are headers that encoders get to see. ``mm_hashes`` are the hashes
    that the caller supplied, one for each media item or none at all; they mean something for its ``tenant`` only. With
    ``prompt_token_ids`` the prompt is these, and of the conversation only the media count.
    """

    request_id: str
    conversation: Conversation
    stops: list[str]
    max_tokens: int | None
    sampling: Sampling
    deadline: Deadline
    forwarded: Mapping[str, str] = field(default_factory=dict)
    ignore_eos: bool = False
    answers: int = 1
    mm_hashes: Sequence[str | None] = ()
    tenant: str = field(default="", repr=False)
    prompt_token_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """A request, read: the prompt's tokens, with one placeholder an item unless they came with the request, and how many tokens
    ``sources`` may take."""

    token_ids: list[int]
    sources: list[MediaSource]
    room: int


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
    ) -> None:
        self._tracer = tracer
        self._drain = drain
        self._stages = metrics.histogram("epd_stage_seconds", "Time of one request in one stage before the engine.", "stage")
        self._settings = settings
        self._model = model
        self._gatherer = gatherer
        self._engine = engine
        self._hasher = hasher
        self._template = ChatTemplate(model.tokenizer, model.half.placeholders.values())
        self._admitted, self._pictured = Pace(), Pace()
        # Few, since more would only take the interpreter from each other and from the event loop.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="prompt")
        self._slots = asyncio.Semaphore(2 * _THREADS)
        # No text of more characters can fit: each token stands for at most as many as the longest in the vocabulary.
        self._most_text = model.context_length * max(len(token) for token in model.tokenizer.get_vocab())

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together."""
        return self._model.context_length

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        return self._model.tokenizer

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
        try:
            # A little later than the deadlines of what it waits for, which have more to say.
            async with asyncio.timeout(max(0.0, request.deadline.left()) + _SLACK):
                return await self._start(request)
        except TimeoutError as error:
            raise EngineOverloaded("The deadline passed before the prompt was ready: the service is too busy.") from error

    async def _start(self, request: ChatRequest) -> list[Completion]:
        media = request.conversation.media
        if len(media) > self._settings.max_items_per_request:
            limit = self._settings.max_items_per_request
            text = f"The request has {named(request.conversation.kinds)}; at most {limit} are accepted."
            raise InvalidRequest(text, param="messages")
        if (unknown := max(request.sampling.logit_bias, default=0)) >= self._model.vocab_size:
            text = f"logit_bias names token {unknown}; the vocabulary has {self._model.vocab_size}."
            raise InvalidRequest(text, param="logit_bias")
        with self._with_pictures(len(media)), self._gatherer.holding() as holding:
            read = await self._in_thread(self._read, request)
            deadline = request.deadline.lowered(self._settings.embedding_timeout, own=True)
            with self._stages.labels("embeddings").time():
                items = await self._gatherer.gather(
                    request.request_id, read.sources, read.room, deadline, request.forwarded, holding
                )
            prompt = await self._in_thread(self._prompt, request, read.token_ids, items)
            return await self._submit(request, prompt)

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

    async def _submit(self, request: ChatRequest, prompt: Prompt) -> list[Completion]:
        self._check_size(len(prompt.token_ids), request.max_tokens)
        wanted = request.sampling
        sampling = replace(
            wanted,
            max_tokens=request.max_tokens or self._model.context_length - len(prompt.token_ids),
            stop_token_ids=wanted.stop_token_ids | (frozenset() if request.ignore_eos else self._model.eos_ids),
        )
        completions: list[Completion] = []
        try:
            for number in range(request.answers):
                completions.append(self._completion(request, prompt, sampling, number))
        except BaseException:
            for completion in completions:
                await completion.aclose()
            raise
        return completions

    def _read(self, request: ChatRequest) -> _Read:
        """Everything about a request that can be known before its embeddings are there; slow where the request is large.

        Raises:
            ClientError: the request, its size, or its media is at fault.
        """
        media = request.conversation.media
        kinds = request.conversation.kinds
        check_modalities(kinds, self._model.half.placeholders, [source.param for source in media])
        token_ids, text_tokens = self._tokenized(request, kinds)
        room = self._model.context_length - (1 if request.max_tokens is None else request.max_tokens)
        self._check_size(text_tokens, request.max_tokens)
        with self._stage("media"):
            limit = self._settings.max_media_bytes
            forms = self._model.half.forms(kinds)
            sources = prepare_sources(media, forms, request.mm_hashes, request.tenant, self._hasher, limit)
        return _Read(token_ids, sources, room - text_tokens)

    def _tokenized(self, request: ChatRequest, kinds: Sequence[Modality]) -> tuple[list[int], int]:
        """The prompt before its items are there, and how many of its tokens are sure to be no item's.

        Raises:
            InvalidRequest: it is too long, or its places and the media do not correspond.
        """
        if request.prompt_token_ids is not None:
            given = list(request.prompt_token_ids)
            self._check_size(len(given), request.max_tokens)
            return given, check_given(given, self._model.half, kinds, self._model.vocab_size)
        length = sum(len(text) for text in request.conversation.texts())
        if length > self._most_text:
            limit = self._model.context_length
            raise InvalidRequest(f"{length} characters of text cannot fit into a context of {limit} tokens.", param="messages")
        with self._stage("tokenize"):
            token_ids = self._template.tokenize(self._conversation(request))
        check_placeholders(token_ids, self._model.half.placeholders, kinds)
        # Each placeholder gives way to its item's tokens, so only the text is sure to stay.
        return token_ids, len(token_ids) - len(kinds)

    def _conversation(self, request: ChatRequest) -> Conversation:
        conversation = request.conversation
        return replace(conversation, template=self._model.half.template_for(conversation.kinds))

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``. Only a few are with the threads at a time, so that only a few come back to the event loop at
        once, however many wait. The context goes along, for spans and log lines."""
        context = copy_context()
        async with self._slots:
            call = partial(work, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(_finished, call))

    @contextmanager
    def _stage(self, name: str) -> Iterator[Span]:
        """Around one stage of one request, which is timed and of which it is the span."""
        with self._stages.labels(name).time(), self._tracer.span(name) as span:
            yield span

    def _completion(self, request: ChatRequest, prompt: Prompt, sampling: Sampling, number: int) -> Completion:
        """The ``number``-th answer; answers of a seeded request have seeds of their own, in order."""
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + number)
        call = EngineRequest(request.request_id, prompt, sampling, request.deadline.left())
        return Completion(self._engine, call, self._model.tokenizer, request.stops, self._tracer)

    def _prompt(self, request: ChatRequest, token_ids: Sequence[int], items: Sequence[MediaItem]) -> Prompt:
        half = self._model.half
        with self._stage("prompt"):
            if request.prompt_token_ids is None:
                items = in_places(token_ids, items, half.placeholders)
            if request.prompt_token_ids is not None or half.prefer_tokenized_input:
                expanded, spans = place_items(token_ids, items, half, self._template.plain)
            else:
                if edges := edges_of(items):
                    token_ids = self._template.tokenize(self._conversation(request), edges)
                expanded, spans = expand(token_ids, items, half.placeholders, half.media_ids)
            return Prompt(expanded, half.positions(expanded, spans), spans)

    def _check_size(self, prompt_tokens: int, max_tokens: int | None) -> None:
        limit, wanted = self._model.context_length, 1 if max_tokens is None else max_tokens
        if prompt_tokens + wanted > limit:
            raise InvalidRequest(
                f"The prompt has {prompt_tokens} tokens and the answer needs {wanted}, together {prompt_tokens + wanted}; "
                f"the model's context has {limit}.",
                param="messages" if max_tokens is None else "max_tokens",
            )


def _finished(work: Callable[[], T]) -> T:
    """The result of ``work``. A future cannot hold a ``StopIteration``, and whoever waits for it would wait for ever."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("an iterator ended too early") from error
