"""What the chat-completions API answers with."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from services.language.completion import Completion, FinishReason
from services.language.timeline import Timeline


class PromptTokensDetails(BaseModel):
    """Of the prompt's tokens: those that needed no computation, and those of media."""

    cached_tokens: int = 0
    image_tokens: int = 0
    video_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    """Of the answer's tokens: those of reasoning."""

    reasoning_tokens: int = 0


class Usage(BaseModel):
    """Token counts; a media item counts as many prompt tokens as it takes in the model's context."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class ItemTimings(BaseModel):
    """Where one media item came from: ``language`` (this service's cache), ``shared`` (another request that was asking for it),
    ``computed`` by an encoder, or ``encoder`` (its cache); and the seconds that the encoder spent on it by stage. ``wire`` is
    what else passed until it was here."""

    index: int
    modality: str
    tokens: int
    source: Literal["language", "shared", "computed", "encoder"]
    encoder_id: str | None
    timings: dict[str, float]
    wire: float | None


class Timings(BaseModel):
    """Seconds by stage, in the order in which a request passes them."""

    stages: dict[str, float]
    items: list[ItemTimings]


class CalledFunction(BaseModel):
    name: str
    arguments: str


class AnsweredCall(BaseModel):
    """A call of a tool; ``arguments`` is JSON text."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(BaseModel):
    """``content`` is null where there are only calls. ``reasoning_content`` and ``tool_calls`` are absent without any."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[AnsweredCall] | None = None

    @model_serializer(mode="wrap")
    def _leave_out(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in ("reasoning_content", "tool_calls"):
            if fields[name] is None:
                del fields[name]
        return fields


class TopLogprob(BaseModel):
    """A token's text, its bytes, and the natural logarithm of its probability before any sampling parameter is applied."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class _WithTokenIds(BaseModel):
    """``token_ids`` is there only where it was asked for (``return_token_ids``)."""

    logprobs: ChoiceLogprobs | None = None
    token_ids: list[int] | None = None

    @model_serializer(mode="wrap")
    def _leave_out_what_was_not_asked_for(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if self.token_ids is None:
            del fields["token_ids"]
        return fields


class Choice(_WithTokenIds):
    index: int = 0
    message: AnswerMessage
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """Answer of ``POST /v1/chat/completions``. ``prompt_token_ids`` and ``timings`` are there where they were asked for."""

    prompt_token_ids: list[int] | None = None
    timings: Timings | None = None

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    system_fingerprint: str | None = None
    choices: list[Choice]
    usage: Usage


class _Sparse(BaseModel):
    """Fields that are not there are absent, as OpenAI has it."""

    @model_serializer(mode="wrap")
    def _only_what_is_there(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class FunctionPart(_Sparse):
    name: str | None = None
    arguments: str = ""


class CallPart(_Sparse):
    """More of a call; its id, type and name come once."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionPart


class Delta(_Sparse):
    """What one event adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallPart] | None = None


class ChunkChoice(_WithTokenIds):
    index: int = 0
    delta: Delta
    finish_reason: FinishReason | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[ChunkChoice]
    usage: Usage | None = None
    timings: Timings | None = None


def written(logprob: float) -> float:
    """A log-probability as JSON can hold it, which has no infinities: OpenAI writes -9999 for what is as good as impossible."""
    return max(logprob, -9999.0)


def usage_of(completions: Sequence[Completion]) -> Usage:
    """Counts so far; the prompt counts once, however many answers it has."""
    first = completions[0]
    prompt, answer = len(first.prompt.token_ids), sum(completion.completion_tokens for completion in completions)
    media: Counter[str] = Counter()
    for span in first.prompt.spans:
        media[f"{span.item.modality}_tokens"] += span.tokens
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=answer,
        total_tokens=prompt + answer,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=first.cached_tokens, **media),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(completion.reasoning_tokens for completion in completions)
        ),
    )


def timings_of(timeline: Timeline, completion: Completion) -> Timings:
    """Where the time of a request went, and of its first answer."""
    items = [ItemTimings(**{name: getattr(item, name) for name in ItemTimings.model_fields}) for item in timeline.items]
    return Timings(stages=timeline.stages | completion.stages, items=items)
