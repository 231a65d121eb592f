"""One response to one chat request: the completions of the engine as OpenAI's objects, whole or as events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Scope

from services.language.api.answering import Answering
from services.language.api.responses import (
    AnsweredCall,
    AnswerMessage,
    CalledFunction,
    CallPart,
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    Delta,
    FunctionPart,
    Timings,
    TokenLogprob,
    TopLogprob,
    Usage,
    timings_of,
    usage_of,
    written,
)
from services.language.api.schemas import ChatCompletionRequest
from services.language.api.sse import event
from services.language.chat import Prepared
from services.language.completion import Completion, FinishReason, Piece
from services.language.deadline import Deadline
from services.language.engine.interface import Step
from services.language.output.format import CallDelta
from services.language.request import ChatRequest
from services.language.timeline import Timeline

_TEXT = "\u2063the text of a chunk\u2063"  # stands for it in the frame that chunks are cut from


class Chat(Protocol):
    """What the routes need of the service behind them."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together."""

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""

    @property
    def fingerprint(self) -> str:
        """What answers depend on besides the request."""

    def admitted(self) -> AbstractContextManager[None]:
        """A place among the requests that are being prepared.

        Raises (on entering):
            EngineOverloaded: there is none.
        """

    async def start(self, request: ChatRequest) -> list[Completion]:
        """Returns when the engine has taken the request; one completion an answer."""

    async def render(self, request: ChatRequest) -> Prepared:
        """What the engine would get for the request."""

    async def tokenize(self, request: ChatRequest) -> list[int]:
        """The tokens of the request's prompt, with one placeholder a media item."""

    async def detokenize(self, token_ids: Sequence[int], deadline: Deadline) -> str:
        """The text of tokens, by the ``deadline``."""


class Answer(Answering):
    """One answer, whole or streamed, under one id."""

    def __init__(self, chat: Chat, model_name: str, body: ChatCompletionRequest, scope: Scope, keepalive: float) -> None:
        super().__init__(scope, keepalive)
        self._chat = chat
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._model = model_name
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._with_ids = body.return_token_ids
        self._with_logprobs = body.logprobs
        self._with_reasoning = body.include_reasoning
        self._with_timings = body.return_timings
        self._created = int(time.time())
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        self._timeline = Timeline()

    async def whole(self, call: ChatRequest) -> Response:
        """The complete answer."""
        completions = await self._chat.start(call)
        pieces = await self.collected(completions)
        answer = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._chat.fingerprint,
            choices=[self._choice(index, of_one) for index, of_one in enumerate(pieces)],
            usage=usage_of(completions),
            prompt_token_ids=completions[0].prompt.token_ids if self._with_ids else None,
            timings=self._timings(call.timeline, completions),
        )
        unasked = {"prompt_token_ids": not self._with_ids, "timings": not self._with_timings}
        return JSONResponse(answer.model_dump(exclude={name for name, unwanted in unasked.items() if unwanted}))

    def _choice(self, index: int, pieces: Sequence[Piece]) -> Choice:
        reason = pieces[-1].finish_reason
        assert reason is not None
        steps = [step for piece in pieces for step in piece.steps]
        calls = calls_of(delta for piece in pieces for delta in piece.calls)
        content = "".join(piece.text for piece in pieces)
        reasoning = "".join(piece.reasoning for piece in pieces) if self._with_reasoning else ""
        return Choice(
            index=index,
            message=AnswerMessage(
                content=content or (None if calls else ""),
                reasoning_content=reasoning or None,
                tool_calls=calls or None,
            ),
            finish_reason=reason,
            logprobs=self._logprobs(steps),
            token_ids=[step.token_id for step in steps] if self._with_ids else None,
        )

    def _timings(self, timeline: Timeline, completions: Sequence[Completion]) -> Timings | None:
        return timings_of(timeline, completions[0]) if self._with_timings else None

    async def stream(self, call: ChatRequest) -> Response:
        """A response that streams; returned only when the first token is there."""
        completions = await self._chat.start(call)
        self._timeline = call.timeline
        return await self.streamed(completions)

    def opening(self, completions: Sequence[Completion]) -> Iterable[bytes]:
        for index in range(len(completions)):
            yield self._chunk(index, Delta(role="assistant", content=""))

    def closing(self, completions: Sequence[Completion]) -> Iterable[bytes]:
        usage = usage_of(completions) if self._with_usage else None
        timings = self._timings(self._timeline, completions)
        if usage is not None or timings is not None:
            yield self._event([], usage, timings)

    def chunks(self, index: int, piece: Piece) -> Iterable[bytes]:
        reasoning = piece.reasoning if self._with_reasoning else ""
        if self._with_ids or self._with_logprobs or reasoning or piece.calls:
            # Steps go with the first of what they bring; where that is nothing yet, they still are told.
            steps = piece.steps
            if reasoning:
                yield self._chunk(index, Delta(reasoning_content=reasoning), steps=steps)
                steps = ()
            if piece.text or (steps and not piece.calls):
                yield self._chunk(index, Delta(content=piece.text), steps=steps)
                steps = ()
            if piece.calls:
                yield self._chunk(index, Delta(tool_calls=[part_of(call) for call in piece.calls]), steps=steps)
        elif piece.text:
            yield self._text(index, piece.text)
        if piece.finish_reason is not None:
            yield self._chunk(index, Delta(), piece.finish_reason)

    def _chunk(self, index: int, delta: Delta, reason: FinishReason | None = None, steps: Sequence[Step] = ()) -> bytes:
        choice = ChunkChoice(
            index=index,
            delta=delta,
            finish_reason=reason,
            logprobs=self._logprobs(steps),
            token_ids=[step.token_id for step in steps] if self._with_ids and steps else None,
        )
        return self._event([choice])

    def _event(self, choices: list[ChunkChoice], usage: Usage | None = None, timings: Timings | None = None) -> bytes:
        chunk = ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._chat.fingerprint,
            choices=choices,
            usage=usage,
            timings=timings,
        )
        # With usage asked for, every chunk has the field, null but in the last one.
        unwanted = {"usage"} if not self._with_usage else set()
        return event(chunk, unwanted if timings is not None else unwanted | {"timings"})

    def _text(self, index: int, text: str) -> bytes:
        """A chunk of nothing but text. All of an answer's are alike but for it, so they are cut from one."""
        if index not in self._frames:
            before, after = self._chunk(index, Delta(content=_TEXT)).split(json.dumps(_TEXT, ensure_ascii=False).encode())
            self._frames[index] = before, after
        before, after = self._frames[index]
        return before + json.dumps(text, ensure_ascii=False).encode() + after

    def _logprobs(self, steps: Sequence[Step]) -> ChoiceLogprobs | None:
        if not self._with_logprobs or not steps:
            return None
        return ChoiceLogprobs(
            content=[
                TokenLogprob(
                    **self._token(step.token_id, step.logprobs.logprob),
                    top_logprobs=[TopLogprob(**self._token(token, value)) for token, value in step.logprobs.top],
                )
                for step in steps
                if step.logprobs is not None
            ]
        )

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._chat.tokenizer.decode([token_id])
        return {"token": text, "logprob": written(logprob), "bytes": list(text.encode())}


def part_of(call: CallDelta) -> CallPart:
    """More of a call, as an event says it."""
    function = FunctionPart(name=call.name, arguments=call.arguments)
    return CallPart(index=call.index, id=call.id, type=None if call.id is None else "function", function=function)


def calls_of(deltas: Iterable[CallDelta]) -> list[AnsweredCall]:
    """Whole calls, of the parts in which they came."""
    calls: dict[int, AnsweredCall] = {}
    for delta in deltas:
        if delta.index not in calls:
            function = CalledFunction(name=delta.name or "", arguments="")
            calls[delta.index] = AnsweredCall(id=delta.id or "", function=function)
        calls[delta.index].function.arguments += delta.arguments
    return list(calls.values())
