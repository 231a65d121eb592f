"""From a request to the prompt that the engine gets. Everything here may take long, and is not for the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from services.language.engine.interface import Prompt
from services.language.models.facts import LanguageFacts
from services.language.output.shape import Shape, Shapes
from services.language.prompt.conversation import Conversation, MediaSource
from services.language.prompt.expansion import check_modalities, check_placeholders, edges_of, expand, in_places
from services.language.prompt.pretokenized import check_given, place_items
from services.language.prompt.sources import prepare_sources
from services.language.prompt.template import ChatTemplate
from services.language.request import ChatRequest
from shared.errors import InvalidRequest
from shared.identity import ContentHasher, MediaItem, Modality
from shared.telemetry import Metrics
from shared.tracing import NO_TRACES, Span, Tracer


@dataclass(frozen=True, slots=True)
class Read:
    """A request, read: the prompt's tokens, with one placeholder an item unless they came with the request, and how many tokens
    ``sources`` may take."""

    token_ids: list[int]
    sources: list[MediaSource]
    room: int


class PromptBuilder:
    """Builds prompts for one checkpoint: what can be known of one before its items are there, and the whole when they are."""

    def __init__(
        self, model: LanguageFacts, hasher: ContentHasher, max_media_bytes: int, metrics: Metrics, tracer: Tracer = NO_TRACES
    ) -> None:
        self._model = model
        self._hasher = hasher
        self._max_media_bytes = max_media_bytes
        self._tracer = tracer
        self.stages = metrics.histogram("epd_stage_seconds", "Time of one request in one stage before the engine.", "stage")
        self._template = ChatTemplate(model.tokenizer, model.half.placeholders.values(), self._check_text)
        self._shapes = Shapes(model.tokenizer, model.eos_ids)
        # No text of more characters can fit: each token stands for at most as many as the longest in the vocabulary.
        self._most_text = model.context_length * max(len(token) for token in model.tokenizer.get_vocab())

    def read(self, request: ChatRequest) -> Read:
        """Everything about a request that can be known before its embeddings are there; slow where the request is large.

        Raises:
            ClientError: the request, its size, or its media is at fault.
        """
        media = request.conversation.media
        kinds = request.conversation.kinds
        check_modalities(kinds, self._model.half.placeholders, [source.param for source in media])
        token_ids, text_tokens = self.tokenized(request, kinds)
        room = self._model.context_length - (1 if request.max_tokens is None else request.max_tokens)
        self.check_size(text_tokens, request.max_tokens)
        with self._stage(request, "media"):
            limit = self._max_media_bytes
            forms = self._model.half.forms(kinds)
            sources = prepare_sources(media, forms, request.mm_hashes, request.tenant, self._hasher, limit)
        return Read(token_ids, sources, room - text_tokens)

    def shape(self, request: ChatRequest, token_ids: Sequence[int]) -> Shape:
        """What the answers have to look like; slow where a grammar has to be made.

        Raises:
            InvalidRequest: none can be made of what is wanted.
        """
        tools, wanted = request.conversation.tools, request.answer_format
        with self._stage(request, "grammar") if tools or wanted is not None else nullcontext():
            if request.plain:
                return self._shapes.of_text(wanted)
            return self._shapes.of_message(wanted, tools, request.tool_choice, token_ids, request.conversation.continued)

    def tokenized(self, request: ChatRequest, kinds: Sequence[Modality]) -> tuple[list[int], int]:
        """The prompt before its items are there, and how many of its tokens are sure to be no item's.

        Raises:
            InvalidRequest: it is too long, or its places and the media do not correspond.
        """
        given = request.prompt_token_ids
        if request.text is not None:
            self._check_text(len(request.text))
            with self._stage(request, "tokenize"):
                given = self._template.encode(request.text, request.special_tokens)
        if given is not None:
            if not given:
                raise InvalidRequest("The prompt has no tokens.", param="messages")
            self.check_size(len(given), request.max_tokens)
            return list(given), check_given(given, self._model.half, kinds, self._model.vocab_size)
        self._check_text(sum(len(text) for text in request.conversation.texts()))
        with self._stage(request, "tokenize"):
            token_ids = self._template.tokenize(self._conversation(request))
        check_placeholders(token_ids, self._model.half.placeholders, kinds)
        # Each placeholder gives way to its item's tokens, so only the text is sure to stay.
        return token_ids, len(token_ids) - len(kinds)

    def _check_text(self, length: int) -> None:
        if length > self._most_text:
            limit = self._model.context_length
            raise InvalidRequest(f"{length} characters of text cannot fit into a context of {limit} tokens.", param="messages")

    def _conversation(self, request: ChatRequest) -> Conversation:
        conversation = request.conversation
        return replace(conversation, template=self._model.half.template_for(conversation.kinds))

    def prompt(self, request: ChatRequest, token_ids: Sequence[int], items: Sequence[MediaItem]) -> Prompt:
        half = self._model.half
        with self._stage(request, "prompt"):
            given = request.prompt_token_ids is not None or request.text is not None
            if not given:
                items = in_places(token_ids, items, half.placeholders)
            if given or half.prefer_tokenized_input:
                expanded, spans = place_items(token_ids, items, half, self._template.plain)
            else:
                if edges := edges_of(items):
                    token_ids = self._template.tokenize(self._conversation(request), edges)
                expanded, spans = expand(token_ids, items, half.placeholders, half.media_ids)
            return Prompt(expanded, half.positions(expanded, spans), spans)

    def check_size(self, prompt_tokens: int, max_tokens: int | None) -> None:
        limit, wanted = self._model.context_length, 1 if max_tokens is None else max_tokens
        if prompt_tokens + wanted > limit:
            raise InvalidRequest(
                f"The prompt has {prompt_tokens} tokens and the answer needs {wanted}, together {prompt_tokens + wanted}; "
                f"the model's context has {limit}.",
                param="messages" if max_tokens is None or prompt_tokens >= limit else "max_tokens",
            )

    @contextmanager
    def _stage(self, request: ChatRequest, name: str) -> Iterator[Span]:
        """Around one stage of one request, which is timed and of which it is the span."""
        with self.stages.labels(name).time(), request.timeline.stage(name), self._tracer.span(name) as span:
            yield span
