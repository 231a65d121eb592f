"""The public routes. A failure before the first token is an HTTP status, for streams too."""

from __future__ import annotations

import math
import re
import time
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import ValidationError

from services.language.api.answer import Answer, Chat
from services.language.api.parts import TextPart
from services.language.api.schemas import ChatCompletion, ChatCompletionRequest, ModelCard, ModelList
from services.language.chat import ChatRequest
from services.language.deadline import Deadline
from services.language.engine.interface import Sampling
from services.language.prompt.conversation import Conversation, MediaSource
from shared.errors import InvalidRequest, from_validation
from shared.http import ERROR_RESPONSES, check_json, component_schemas, in_time, request_id_of, schema_ref, span_of, unless_gone

CHAT_PATH = "/v1/chat/completions"

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds that the caller gives the request; it can only lower what the settings give."""

FORWARDED_PREFIX = "x-epd-"
"""Headers that begin so are passed on to encoders, whose faults can match them."""

_TOKENS = re.compile(rb'"prompt_token_ids"\s*:\s*\[[\d,\s]*\]')
_MAX_FORWARDED = 8
_MAX_FORWARDED_SIZE = 8192


def install_routes(app: FastAPI, model_name: str, request_timeout: float, body_timeout: float) -> None:
    """Adds the OpenAI routes to ``app``, whose ``state.chat`` is a ``Chat`` once it is up."""
    router = APIRouter()
    created = int(time.time())

    @router.get("/v1/models", summary="The served model")
    async def models() -> ModelList:
        chat: Chat = app.state.chat
        return ModelList(data=[ModelCard(id=model_name, created=created, max_model_len=chat.context_length)])

    @router.post(
        CHAT_PATH,
        summary="Answer a conversation with text, pictures, videos and sounds",
        response_model=ChatCompletion,
        responses=ERROR_RESPONSES,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": schema_ref(ChatCompletionRequest)}},
            },
            "parameters": [
                {
                    "name": TIMEOUT_HEADER,
                    "in": "header",
                    "schema": {"type": "number", "exclusiveMinimum": 0},
                    "description": "Seconds that the request may take; past them it is answered 503.",
                }
            ],
        },
    )
    async def chat_completions(request: Request) -> Response:
        chat: Chat = app.state.chat
        deadline = deadline_of(request, request_timeout)
        # Before the body is read: a body is the largest thing that a request holds.
        with chat.admitted():
            raw = await in_time(request, request.body(), min(body_timeout, deadline.left()))
            body = parse(raw, model_name, chat.context_length)
            del raw
            answer = Answer(chat, model_name, body, request.scope)
            call = ask_of(body, request_id_of(request), deadline, forwarded_of(request), tenant_of(request))
            span_of(request).set(stream=body.stream, items=len(call.conversation.media))
            return await unless_gone(request, answer.stream(call) if body.stream else answer.whole(call))

    app.include_router(router)
    component_schemas(app, ChatCompletionRequest)


def parse(raw: bytes, model_name: str, context_length: int) -> ChatCompletionRequest:
    """The request in a body.

    Raises:
        InvalidRequest: too many values, not JSON, not the schema, or another model than the one that is served.
    """
    check_json(_without_tokens(raw, context_length))
    try:
        body = ChatCompletionRequest.model_validate_json(raw)
    except ValidationError as error:
        raise from_validation(error.errors()) from error
    if body.model not in (None, model_name):
        raise InvalidRequest(f"The model {body.model!r} is not served here; {model_name!r} is.", param="model")
    return body


def _without_tokens(raw: bytes, context_length: int) -> bytes:
    """The body without the tokens of its prompt. They are many values, but numbers in a row take little time.

    Raises:
        InvalidRequest: there are more than fit into the context.
    """
    given = _TOKENS.search(raw)
    if given is None:
        return raw
    if (tokens := given[0].count(b",") + 1) > context_length:
        text = f"The prompt has {tokens} tokens; the model's context has {context_length}."
        raise InvalidRequest(text, param="prompt_token_ids")
    return raw[: given.start()] + raw[given.end() :]


def deadline_of(request: Request, seconds: float) -> Deadline:
    """The deadline of a request that arrives now: ``seconds``, or less if its header says so.

    Raises:
        InvalidRequest: the header holds no positive number.
    """
    deadline = Deadline(seconds)
    wished = request.headers.get(TIMEOUT_HEADER)
    if wished is None:
        return deadline
    try:
        value = float(wished)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise InvalidRequest(f"{TIMEOUT_HEADER} must be a positive number of seconds, not {wished!r}.", param=TIMEOUT_HEADER)
    return deadline.lowered(value, own=False)


def forwarded_of(request: Request) -> dict[str, str]:
    """The headers that encoders get to see.

    Raises:
        InvalidRequest: there are too many, or they are too long: encoders would refuse them, and seem to have failed.
    """
    forwarded = {name: value for name, value in request.headers.items() if name.startswith(FORWARDED_PREFIX)}
    if len(forwarded) > _MAX_FORWARDED:
        text = f"{len(forwarded)} headers begin with {FORWARDED_PREFIX}; at most {_MAX_FORWARDED} are passed on."
        raise InvalidRequest(text, param=FORWARDED_PREFIX)
    if (size := sum(map(len, forwarded.values()))) > _MAX_FORWARDED_SIZE:
        text = f"The headers that begin with {FORWARDED_PREFIX} have {size} bytes; at most {_MAX_FORWARDED_SIZE} are passed on."
        raise InvalidRequest(text, param=FORWARDED_PREFIX)
    return forwarded


def tenant_of(request: Request) -> str:
    """Whose the hashes are that a request supplies: whoever has its credentials; nobody in particular without any."""
    scheme, _, credentials = request.headers.get("authorization", "").strip().partition(" ")
    return f"{scheme.lower()} {credentials.strip()}".strip()


def ask_of(
    body: ChatCompletionRequest, request_id: str, deadline: Deadline, forwarded: dict[str, str], tenant: str = ""
) -> ChatRequest:
    """The request, free of HTTP: media in order, each with its place in the request.

    Raises:
        InvalidRequest: there are hashes, but not one for each media item.
    """
    messages: list[dict[str, Any]] = []
    media: list[MediaSource] = []
    for at, message in enumerate(body.messages):
        content: str | list[dict[str, str]]
        if isinstance(message.content, list):
            content = []
            for part_at, part in enumerate(message.content):
                if isinstance(part, TextPart):
                    content.append({"type": "text", "text": part.text})
                else:
                    param = f"messages.{at}.content.{part_at}.{part.type}"
                    media.append(MediaSource(len(media), part.modality, param, url=part.url))
                    content.append({"type": part.modality})
        else:
            content = message.content or ""
        # Chat templates know the older name of the developer's role.
        role = "system" if message.role == "developer" else message.role
        messages.append({"role": role, "content": content})
    if body.mm_hashes is not None and len(body.mm_hashes) != len(media):
        text = f"mm_hashes has {len(body.mm_hashes)} entries, but the request has {len(media)} media items."
        raise InvalidRequest(text, param="mm_hashes")
    return ChatRequest(
        request_id=request_id,
        conversation=Conversation(messages, tuple(media)),
        stops=body.stop,
        max_tokens=body.token_limit,
        sampling=sampling_of(body),
        deadline=deadline,
        forwarded=forwarded,
        ignore_eos=body.ignore_eos,
        answers=body.n,
        mm_hashes=body.mm_hashes or (),
        tenant=tenant,
        prompt_token_ids=body.prompt_token_ids,
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
