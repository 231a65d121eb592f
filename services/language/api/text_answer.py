"""One response of the older completions API: texts that go on from prompts, as OpenAI's objects, whole or as events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer
from starlette.types import Scope

from services.language.api.answer import Chat
from services.language.api.answering import Answering
from services.language.api.responses import Usage, usage_of, written
from services.language.api.sse import event
from services.language.api.text_request import CompletionRequest
from services.language.completion import Completion, FinishReason, Piece
from services.language.engine.interface import Step
from services.language.prompt.detokenizer import Detokenizer


class TextLogprobs(BaseModel):
    """For each token of a text: itself, its log-probability, that of the likeliest ones and of itself, and where in the text it
    begins."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(BaseModel):
    """One text, or more of it. The token ids are there only where they were asked for (``return_token_ids``), those of the
    prompt once."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None

    @model_serializer(mode="wrap")
    def _leave_out_what_was_not_asked_for(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in ("token_ids", "prompt_token_ids"):
            if fields[name] is None:
                del fields[name]
        return fields


class TextCompletion(BaseModel):
    """Answer of ``POST /v1/completions``, and each event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[TextChoice]
    usage: Usage | None = None


class TextAnswer(Answering):
    """One answer under one id. Of its completions those of the first prompt come first. ``echoes`` are what the texts begin
    with, one for each prompt, or none at all."""

    def __init__(
        self, chat: Chat, model_name: str, body: CompletionRequest, echoes: Sequence[str], scope: Scope, keepalive: float
    ) -> None:
        super().__init__(scope, keepalive)
        self._chat = chat
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._model = model_name
        self._created = int(time.time())
        self._answers = body.n
        self._echoes = echoes
        self._with_logprobs = body.alternatives is not None
        self._with_ids = body.return_token_ids
        self._with_usage = body.with_usage
        self._offsets: dict[int, Offsets] = {}

    async def whole(self, completions: Sequence[Completion]) -> Response:
        """The complete answer."""
        pieces = await self.collected(completions)
        choices = [self._choice(index, completions[index], of_one) for index, of_one in enumerate(pieces)]
        return JSONResponse(self._object(choices, self._usage(completions)).model_dump())

    def _choice(self, index: int, completion: Completion, pieces: Sequence[Piece]) -> TextChoice:
        steps = [step for piece in pieces for step in piece.steps]
        return TextChoice(
            index=index,
            text=self._echo(index) + "".join(piece.text for piece in pieces),
            logprobs=self._logprobs(index, steps),
            finish_reason=pieces[-1].finish_reason,
            token_ids=[step.token_id for step in steps] if self._with_ids else None,
            prompt_token_ids=completion.prompt.token_ids if self._with_ids else None,
        )

    def opening(self, completions: Sequence[Completion]) -> Iterable[bytes]:
        for index, completion in enumerate(completions):
            echo = self._echo(index)
            if echo or self._with_ids:
                ids = completion.prompt.token_ids if self._with_ids else None
                yield self._event(TextChoice(index=index, text=echo, prompt_token_ids=ids))

    def chunks(self, index: int, piece: Piece) -> Iterable[bytes]:
        if piece.text or self._with_ids or self._with_logprobs:
            ids = [step.token_id for step in piece.steps] if self._with_ids else None
            logprobs = self._logprobs(index, piece.steps)
            yield self._event(TextChoice(index=index, text=piece.text, logprobs=logprobs, token_ids=ids))
        if piece.finish_reason is not None:
            yield self._event(TextChoice(index=index, text="", finish_reason=piece.finish_reason))

    def closing(self, completions: Sequence[Completion]) -> Iterable[bytes]:
        if self._with_usage:
            yield event(self._object([], self._usage(completions)))

    def _event(self, choice: TextChoice) -> bytes:
        # With usage asked for, every event has the field, null but in the last one.
        return event(self._object([choice]), exclude=None if self._with_usage else {"usage"})

    def _object(self, choices: list[TextChoice], usage: Usage | None = None) -> TextCompletion:
        return TextCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._chat.fingerprint,
            choices=choices,
            usage=usage,
        )

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._answers] if self._echoes else ""

    def _usage(self, completions: Sequence[Completion]) -> Usage:
        by_prompt = range(0, len(completions), self._answers)
        return total([usage_of(completions[at : at + self._answers]) for at in by_prompt])

    def _logprobs(self, index: int, steps: Sequence[Step]) -> TextLogprobs | None:
        if not self._with_logprobs or not steps:
            return None
        if index not in self._offsets:
            self._offsets[index] = Offsets(self._chat.tokenizer)
        offsets = self._offsets[index]
        told = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for step in steps:
            if step.logprobs is None:
                continue
            chosen = written(step.logprobs.logprob)
            text = self._chat.tokenizer.decode([step.token_id])
            top = {text: chosen}
            for token, value in step.logprobs.top:
                top.setdefault(self._chat.tokenizer.decode([token]), written(value))
            told.tokens.append(text)
            told.token_logprobs.append(chosen)
            told.top_logprobs.append(top)
            told.text_offset.append(offsets.next(step.token_id))
        return told


class Offsets:
    """Where in a text its tokens begin. Tokens that are one character together begin where that does."""

    def __init__(self, tokenizer: Any) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._length = 0

    def next(self, token_id: int) -> int:
        """Where the next token begins."""
        begin = self._length
        self._length += len(self._detokenizer.push(token_id))
        return begin


def total(usages: Sequence[Usage]) -> Usage:
    """The usage of several prompts together."""
    together = usages[0]
    for usage in usages[1:]:
        together = Usage.model_validate(_added(together.model_dump(), usage.model_dump()))
    return together


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: _added(value, other[name]) if isinstance(value, dict) else value + other[name] for name, value in one.items()}
