"""The public routes. A failure before the first token is an HTTP status, for streams too."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from services.language.api.schemas import (
    AnswerMessage,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Choice,
    ChunkChoice,
    Delta,
    ImagePart,
    ModelCard,
    ModelList,
    Usage,
)
from services.language.api.sse import DONE, event
from services.language.chat import ChatRequest
from services.language.completion import Completion, Piece
from services.language.engine.interface import FinishReason
from services.language.prompt.conversation import Conversation, MediaSource
from shared.errors import InvalidRequest, body_of, from_exception, from_validation
from shared.http import ERROR_RESPONSES, request_id_of
from shared.telemetry import get_logger, log_failure

_log = get_logger("api")

T = TypeVar("T")


class Chat(Protocol):
    """What the routes need of the service behind them."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together."""

    async def start(self, request: ChatRequest) -> Completion:
        """Returns when the engine has taken the request."""


class ClientGone(Exception):
    """The client hung up; there is nobody to answer."""


def install_routes(app: FastAPI, model_name: str) -> None:
    """Adds the OpenAI routes to ``app``, whose ``state.chat`` is a ``Chat`` once it is up."""
    router = APIRouter()
    created = int(time.time())

    @router.get("/v1/models", summary="The served model")
    async def models() -> ModelList:
        chat: Chat = app.state.chat
        return ModelList(data=[ModelCard(id=model_name, created=created, max_model_len=chat.context_length)])

    @router.post(
        "/v1/chat/completions",
        summary="Answer a conversation with text and pictures",
        response_model=ChatCompletion,
        responses=ERROR_RESPONSES,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": ChatCompletionRequest.model_json_schema()}},
            }
        },
    )
    async def chat_completions(request: Request) -> Response:
        body = parse(await request.body(), model_name)
        chat: Chat = app.state.chat
        call = ask_of(body, request_id_of(request))
        answer = Answer(f"chatcmpl-{uuid.uuid4().hex}", model_name, body)
        try:
            if body.stream:
                return await unless_gone(request, answer.stream(chat, call))
            return await unless_gone(request, answer.whole(chat, call))
        except ClientGone:
            request.scope["epd_code"] = "client_gone"
            _log.info("client gone", path=request.url.path)
            return Response(status_code=499)

    app.include_router(router)


def parse(raw: bytes, model_name: str) -> ChatCompletionRequest:
    """The request in a body.

    Raises:
        InvalidRequest: not JSON, not the schema, or another model than the one that is served.
    """
    try:
        body = ChatCompletionRequest.model_validate_json(raw)
    except ValidationError as error:
        raise from_validation(error.errors()) from error
    if body.model not in (None, model_name):
        raise InvalidRequest(f"The model {body.model!r} is not served here; {model_name!r} is.", param="model")
    return body


def ask_of(body: ChatCompletionRequest, request_id: str) -> ChatRequest:
    """The request, free of HTTP: media in order, each with its place in the request."""
    messages: list[dict[str, Any]] = []
    media: list[MediaSource] = []
    for at, message in enumerate(body.messages):
        content: str | list[dict[str, str]]
        if isinstance(message.content, list):
            content = []
            for part_at, part in enumerate(message.content):
                if isinstance(part, ImagePart):
                    param = f"messages.{at}.content.{part_at}.image_url"
                    media.append(MediaSource(len(media), "image", param, url=part.image_url.url))
                    content.append({"type": "image"})
                else:
                    content.append({"type": "text", "text": part.text})
        else:
            content = message.content or ""
        # Chat templates know the older name of the developer's role.
        role = "system" if message.role == "developer" else message.role
        messages.append({"role": role, "content": content})
    return ChatRequest(
        request_id=request_id,
        conversation=Conversation(messages, tuple(media)),
        stops=body.stop,
        max_tokens=body.token_limit,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
    )


class Answer:
    """One answer, whole or streamed, under one id."""

    def __init__(self, answer_id: str, model_name: str, body: ChatCompletionRequest) -> None:
        self._id = answer_id
        self._model = model_name
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._with_ids = body.return_token_ids
        self._created = int(time.time())

    async def whole(self, chat: Chat, call: ChatRequest) -> Response:
        """The complete answer."""
        completion = await chat.start(call)
        pieces = [piece async for piece in completion.pieces()]
        message = AnswerMessage(content="".join(piece.text for piece in pieces))
        reason = pieces[-1].finish_reason
        assert reason is not None
        token_ids = [token for piece in pieces for token in piece.token_ids] if self._with_ids else None
        answer = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[Choice(message=message, finish_reason=reason, token_ids=token_ids)],
            usage=usage_of(completion),
            prompt_token_ids=completion.prompt_token_ids if self._with_ids else None,
        )
        return JSONResponse(answer.model_dump(exclude=None if self._with_ids else {"prompt_token_ids"}))

    async def stream(self, chat: Chat, call: ChatRequest) -> Response:
        """A response that streams; returned only when the first token is there."""
        completion = await chat.start(call)
        pieces = completion.pieces()
        try:
            first = await anext(pieces)
        except BaseException:
            await pieces.aclose()  # type: ignore[attr-defined]
            raise
        return StreamingResponse(
            self._events(completion, first, pieces),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )

    async def _events(self, completion: Completion, first: Piece, rest: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
        yield self._chunk(Delta(role="assistant", content=""))
        piece: Piece | None = first
        async with aclosing(rest):  # type: ignore[type-var]
            try:
                while piece is not None:
                    if piece.text or (self._with_ids and piece.token_ids):
                        yield self._chunk(Delta(content=piece.text), token_ids=piece.token_ids)
                    if piece.finish_reason is not None:
                        yield self._chunk(Delta(), piece.finish_reason)
                    piece = await anext(rest, None)
            except Exception as cause:
                # The status is sent already: the stream says what happened, and ends without [DONE].
                error = from_exception(cause)
                log_failure(_log, error, cause)
                yield event(body_of(error))
                return
        if self._with_usage:
            last = ChatCompletionChunk(
                id=self._id, created=self._created, model=self._model, choices=[], usage=usage_of(completion)
            )
            yield event(last)
        yield DONE

    def _chunk(self, delta: Delta, reason: FinishReason | None = None, token_ids: Sequence[int] = ()) -> bytes:
        ids = list(token_ids) if self._with_ids and token_ids else None
        choice = ChunkChoice(delta=delta, finish_reason=reason, token_ids=ids)
        chunk = ChatCompletionChunk(id=self._id, created=self._created, model=self._model, choices=[choice])
        # With usage asked for, every chunk has the field, null but in the last one.
        return event(chunk, exclude=None if self._with_usage else {"usage"})


def usage_of(completion: Completion) -> Usage:
    """Counts of a completion so far."""
    prompt, answer = len(completion.prompt_token_ids), completion.completion_tokens
    return Usage(prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client hangs up.

    Raises:
        ClientGone: the client hung up first.
    """
    doing = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGone
        return doing.result()
    finally:
        gone.cancel()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
