"""The public routes. A failure before the first token is an HTTP status, for streams too."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response

from services.language.api.answer import Answer, Chat
from services.language.api.ask import Caller, ask_of
from services.language.api.body import arrived, off_loop, parse
from services.language.api.document import CHAT_ANSWER, CHAT_EVENTS, CHATS, MEDIA_FAILURES, TIMEOUT_PARAMETER, answers
from services.language.api.responses import ChatCompletion, ChatCompletionChunk
from services.language.api.schemas import ChatCompletionRequest
from shared.http import component_schemas, schema_ref, span_of, unless_gone
from shared.openapi import json_body

CHAT_PATH = "/v1/chat/completions"


def install_routes(app: FastAPI, model_name: str, request_timeout: float, body_timeout: float, keepalive: float) -> None:
    """Adds the OpenAI routes to ``app``, whose ``state.chat`` is a ``Chat`` once it is up."""
    router = APIRouter()

    @router.post(
        CHAT_PATH,
        tags=["answers"],
        summary="Answer a conversation with text, pictures, videos and sounds",
        response_model=ChatCompletion,
        responses=answers(CHAT_ANSWER, ChatCompletionChunk, CHAT_EVENTS) | MEDIA_FAILURES,
        openapi_extra=json_body(schema_ref(ChatCompletionRequest), **CHATS) | TIMEOUT_PARAMETER,
    )
    async def chat_completions(request: Request) -> Response:
        chat: Chat = app.state.chat
        caller = Caller.of(request, request_timeout)
        # Before the body is read: a body is the largest thing that a request holds.
        with chat.admitted():
            body = await received(request, chat, model_name, caller, body_timeout)
            answer = Answer(chat, model_name, body, request.scope, keepalive)
            call = ask_of(body, caller)
            span_of(request).set(stream=body.stream, items=len(call.conversation.media))
            return await unless_gone(request, answer.stream(call) if body.stream else answer.whole(call))

    app.include_router(router)
    component_schemas(app, ChatCompletionRequest, ChatCompletionChunk)


async def received(request: Request, chat: Chat, model_name: str, caller: Caller, body_timeout: float) -> ChatCompletionRequest:
    """The body of a chat request, which has at most ``body_timeout`` seconds to arrive.

    Raises:
        InvalidRequest, ModelNotFound: as ``parse``; or it did not arrive in time.
    """
    raw = await arrived(request, caller.deadline, body_timeout)
    return await off_loop(parse, raw, model_name, chat.context_length)
