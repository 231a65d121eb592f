"""What the engine would get for a chat request: the prompt as the model sees it, and whose tokens are where in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from fastapi import FastAPI, Request
from pydantic import BaseModel

from services.language.api.answer import Chat
from services.language.api.ask import Caller, ask_of
from services.language.api.document import CHATS, MEDIA_FAILURES, TIMEOUT_PARAMETER
from services.language.api.routes import received
from services.language.api.schemas import ChatCompletionRequest
from services.language.chat import Prepared
from services.language.engine.interface import Prompt, Span
from services.language.request import ChatRequest
from shared.http import schema_ref, unless_gone
from shared.identity import Grid, MediaItem, Modality
from shared.openapi import json_body

RENDER_PATH = "/v1/chat/completions/render"


class RenderedItem(BaseModel):
    """One media item. Its embeddings stand for the tokens of ``spans``, each a place in ``prompt_token_ids`` and a number of
    tokens; there are ``num_tokens`` of them, and ``prompt_tokens`` together with its marks."""

    index: int
    modality: Modality
    param: str
    content_hash: str
    num_tokens: int
    prompt_tokens: int
    grid_thw: Grid | None
    spans: list[tuple[int, int]]


class Rendered(BaseModel):
    """Answer of ``POST /v1/chat/completions/render``. In ``prompt``, ``<|image_pad|>×256`` is that token 256 times; ``grammar``
    is what the answer would have to match, in llguidance's Lark, where there is something."""

    object: Literal["chat.completion.render"] = "chat.completion.render"
    model: str
    prompt: str
    prompt_token_ids: list[int]
    prompt_tokens: int
    items: list[RenderedItem]
    stop_token_ids: list[int]
    max_tokens: int
    grammar: str | None


def install_render_routes(app: FastAPI, model_name: str, request_timeout: float, body_timeout: float) -> None:
    """Adds ``RENDER_PATH`` to ``app``, whose ``state.chat`` is a ``Chat`` once it is up."""

    @app.post(
        RENDER_PATH,
        summary="The prompt of a chat request as the model sees it, with all embeddings there, but unanswered",
        tags=["tokens"],
        responses=MEDIA_FAILURES,
        openapi_extra=json_body(schema_ref(ChatCompletionRequest), a_picture=CHATS["a_picture"]) | TIMEOUT_PARAMETER,
    )
    async def render(request: Request) -> Rendered:
        chat: Chat = app.state.chat
        caller = Caller.of(request, request_timeout)
        with chat.admitted():
            call = ask_of(await received(request, chat, model_name, caller, body_timeout), caller)
            ready = await unless_gone(request, chat.render(call))
            return await asyncio.to_thread(rendered, model_name, chat.tokenizer, call, ready)


def rendered(model_name: str, tokenizer: Any, call: ChatRequest, ready: Prepared) -> Rendered:
    """What was made ready for the engine, for people to read. Takes a while for long prompts."""
    prompt = ready.prompt
    return Rendered(
        model=model_name,
        prompt="".join(_text(prompt, tokenizer)),
        prompt_token_ids=prompt.token_ids,
        prompt_tokens=len(prompt.token_ids),
        items=[
            RenderedItem(
                index=source.index,
                modality=item.modality,
                param=source.param,
                content_hash=item.content_hash,
                num_tokens=item.num_tokens,
                prompt_tokens=item.prompt_tokens,
                grid_thw=item.grid_thw,
                spans=[(span.start, span.tokens) for span in spans],
            )
            for source, item, spans in zip(
                call.conversation.media, ready.items, _spans_of(ready.items, prompt.spans), strict=True
            )
        ],
        stop_token_ids=sorted(ready.sampling.stop_token_ids),
        max_tokens=ready.sampling.max_tokens,
        grammar=ready.shape.grammar,
    )


def _text(prompt: Prompt, tokenizer: Any) -> Iterator[str]:
    """The prompt's text in pieces: what lies between media tokens, and each run of these as one token and its number."""
    at = 0
    for span in prompt.spans:
        if between := prompt.token_ids[at : span.start]:
            yield tokenizer.decode(between)
        token = prompt.token_ids[span.start]
        yield f"{tokenizer.decode([token]) or f'<{token}>'}×{span.tokens}"  # some families' lie outside the vocabulary
        at = span.start + span.tokens
    if rest := prompt.token_ids[at:]:
        yield tokenizer.decode(rest)


def _spans_of(items: Sequence[MediaItem], spans: Sequence[Span]) -> list[list[Span]]:
    """The spans of each item. An object that came from the cache may be several items; the first of them is the first in the
    prompt."""
    places: dict[int, list[list[Span]]] = {}
    for span in spans:
        of_object = places.setdefault(id(span.item), [])
        if span.offset == 0:
            of_object.append([])
        of_object[-1].append(span)
    return [places[id(item)].pop(0) for item in items]
