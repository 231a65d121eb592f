"""One response to one chat request: the completions of the engine as OpenAI's objects, whole or as events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any, Protocol, cast

from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Scope

from services.language.api.schemas import (
    AnswerMessage,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    Delta,
    PromptTokensDetails,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from services.language.api.sse import DONE, event
from services.language.chat import ChatRequest
from services.language.completion import Completion, Piece
from services.language.engine.interface import FinishReason, Step
from shared.errors import body_of, from_exception
from shared.telemetry import get_logger, log_failure

_log = get_logger("api")

_TEXT = "\u2063the text of a chunk\u2063"  # stands for it in the frame that chunks are cut from


class Chat(Protocol):
    """What the routes need of the service behind them."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together."""

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""

    def admitted(self) -> AbstractContextManager[None]:
        """A place among the requests that are being prepared.

        Raises (on entering):
            EngineOverloaded: there is none.
        """

    async def start(self, request: ChatRequest) -> list[Completion]:
        """Returns when the engine has taken the request; one completion an answer."""


class Answer:
    """One answer, whole or streamed, under one id."""

    def __init__(self, chat: Chat, model_name: str, body: ChatCompletionRequest, scope: Scope) -> None:
        self._chat = chat
        self._scope = scope
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._model = model_name
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._with_ids = body.return_token_ids
        self._with_logprobs = body.logprobs
        self._created = int(time.time())
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    async def whole(self, call: ChatRequest) -> Response:
        """The complete answer."""
        completions = await self._chat.start(call)
        pieces: list[list[Piece]] = [[] for _ in completions]
        async with aclosing(merge(completions)) as merged:
            async for index, piece in merged:
                pieces[index].append(piece)
        answer = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(index, of_one) for index, of_one in enumerate(pieces)],
            usage=usage_of(completions),
            prompt_token_ids=completions[0].prompt_token_ids if self._with_ids else None,
        )
        return JSONResponse(answer.model_dump(exclude=None if self._with_ids else {"prompt_token_ids"}))

    def _choice(self, index: int, pieces: Sequence[Piece]) -> Choice:
        reason = pieces[-1].finish_reason
        assert reason is not None
        steps = [step for piece in pieces for step in piece.steps]
        return Choice(
            index=index,
            message=AnswerMessage(content="".join(piece.text for piece in pieces)),
            finish_reason=reason,
            logprobs=self._logprobs(steps),
            token_ids=[step.token_id for step in steps] if self._with_ids else None,
        )

    async def stream(self, call: ChatRequest) -> Response:
        """A response that streams; returned only when the first token is there."""
        completions = await self._chat.start(call)
        merged = merge(completions)
        try:
            first = await anext(merged)
        except BaseException:
            await merged.aclose()
            raise
        events = self._events(completions, first, merged)
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def _events(self, completions: Sequence[Completion], first: tuple[int, Piece], rest: Merged) -> AsyncIterator[bytes]:
        async with aclosing(rest):
            try:
                for index in range(len(completions)):
                    yield self._chunk(index, Delta(role="assistant", content=""))
                for chunk in self._chunks(*first):
                    yield chunk
                async for index, piece in rest:
                    for chunk in self._chunks(index, piece):
                        yield chunk
            except Exception as cause:
                # The status is sent already: the stream says what happened, and ends without [DONE].
                error = from_exception(cause)
                self._scope["epd_code"] = error.code
                log_failure(_log, error, cause)
                yield event(body_of(error))
                return
        if self._with_usage:
            usage = usage_of(completions)
            yield event(ChatCompletionChunk(id=self._id, created=self._created, model=self._model, choices=[], usage=usage))
        yield DONE

    def _chunks(self, index: int, piece: Piece) -> Iterable[bytes]:
        if self._with_ids or self._with_logprobs:
            yield self._chunk(index, Delta(content=piece.text), steps=piece.steps)
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
        chunk = ChatCompletionChunk(id=self._id, created=self._created, model=self._model, choices=[choice])
        # With usage asked for, every chunk has the field, null but in the last one.
        return event(chunk, exclude=None if self._with_usage else {"usage"})

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
        # JSON has no infinities; OpenAI writes -9999 for what is as good as impossible.
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}


class Merged(Protocol):
    """Pieces of several completions as they come; closing it cancels them all."""

    def __aiter__(self) -> Merged: ...
    async def __anext__(self) -> tuple[int, Piece]: ...
    async def aclose(self) -> None: ...


async def _numbered(index: int, completion: Completion) -> AsyncIterator[tuple[int, Piece]]:
    async with aclosing(completion.pieces()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            yield index, piece


def merge(completions: Sequence[Completion]) -> Merged:
    """The pieces of all completions, each with its index, in the order in which they come."""
    streams: Any = [_numbered(index, completion) for index, completion in enumerate(completions)]
    merged: Any = streams[0] if len(streams) == 1 else _merged(streams)
    return cast(Merged, merged)


async def _merged(streams: list[Any]) -> AsyncIterator[tuple[int, Piece]]:
    waiting = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                stream = waiting.pop(future)
                try:
                    yield future.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(stream))] = stream
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


def usage_of(completions: Sequence[Completion]) -> Usage:
    """Counts so far; the prompt counts once, however many answers it has."""
    prompt = len(completions[0].prompt_token_ids)
    answer = sum(completion.completion_tokens for completion in completions)
    cached = completions[0].cached_tokens
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=answer,
        total_tokens=prompt + answer,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )
