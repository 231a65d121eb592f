"""The public routes. A failure before the first token is an HTTP status, for streams too."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import ValidationError

from services.language.api.answer import Answer, Chat
from services.language.api.schemas import ChatCompletion, ChatCompletionRequest, ImagePart, ModelCard, ModelList
from services.language.chat import ChatRequest
from services.language.engine.interface import Sampling
from services.language.prompt.conversation import Conversation, MediaSource
from shared.errors import InvalidRequest, from_validation
from shared.http import ERROR_RESPONSES, component_schemas, request_id_of, schema_ref, unless_gone


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
                "content": {"application/json": {"schema": schema_ref(ChatCompletionRequest)}},
            }
        },
    )
    async def chat_completions(request: Request) -> Response:
        chat: Chat = app.state.chat
        # Before the body is read: a body is the largest thing that a request holds.
        with chat.admitted():
            body = parse(await request.body(), model_name)
            answer = Answer(chat, model_name, body, request.scope)
            call = ask_of(body, request_id_of(request))
            return await unless_gone(request, answer.stream(call) if body.stream else answer.whole(call))

    app.include_router(router)
    component_schemas(app, ChatCompletionRequest)


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
        sampling=sampling_of(body),
        ignore_eos=body.ignore_eos,
        answers=body.n,
    )


def sampling_of(body: ChatCompletionRequest) -> Sampling:
    """The sampling parameters of a request; its token limit is completed when the prompt's length is known."""
    return Sampling(
        max_tokens=body.token_limit or 1,
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        top_k=max(0, body.top_k),
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=body.logit_bias,
        seed=body.seed,
        stop_token_ids=frozenset(body.stop_token_ids),
        logprobs=body.top_logprobs if body.logprobs else None,
    )
