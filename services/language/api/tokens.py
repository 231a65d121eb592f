"""Texts and conversations as tokens, and tokens as text, as vLLM's server has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from services.language.api.answer import Chat
from services.language.api.ask import Caller, ask_of
from services.language.api.body import arrived, check_model, off_loop, validate
from services.language.api.document import TEXT_FAILURES, TIMEOUT_PARAMETER
from services.language.api.messages import Message
from services.language.api.numbers import blamed_on, validate_numbers
from services.language.api.parts import RequestModel, wrong
from services.language.api.sampling import TokenId
from services.language.api.schemas import ChatCompletionRequest
from services.language.api.text_request import MAX_TOKENS
from services.language.request import ChatRequest
from shared.http import component_schemas, schema_ref, unless_gone
from shared.openapi import json_body

TOKENIZE_PATH, DETOKENIZE_PATH = "/tokenize", "/detokenize"


class TokenizeRequest(ChatCompletionRequest):
    """Body of ``POST /tokenize``: a ``prompt``, or what a chat is asked for. A media item counts as the one token that stands
    for it in a prompt, since it is not looked at."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, json_schema_extra={"example": {"model": "demo_model", "prompt": "A red circle"}}
    )

    messages: list[Message] = Field(default_factory=list, max_length=4096)
    prompt: str | None = Field(None, description="A text, instead of messages.")
    add_special_tokens: bool = Field(True, description="Put before a prompt what the tokenizer begins with.")
    return_token_strs: bool = Field(False, description="Also answer with each token as the vocabulary spells it.")

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, messages: list[Message], info: ValidationInfo) -> list[Message]:  # noqa: ARG003
        return messages

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if bool(self.messages) == (self.prompt is not None):
            raise wrong("prompt", "a request needs a prompt or messages, and not both")
        return self


class Tokenized(BaseModel):
    """Answer of ``POST /tokenize``. ``max_model_len`` is what the context has room for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    """Body of ``POST /detokenize``."""

    model_config = ConfigDict(extra="ignore", frozen=True, json_schema_extra={"example": {"tokens": [34, 220, 83]}})

    model: str | None = None
    tokens: list[TokenId] = Field(fail_fast=True)


class Detokenized(BaseModel):
    """Answer of ``POST /detokenize``."""

    prompt: str


def install_token_routes(app: FastAPI, model_name: str, request_timeout: float, body_timeout: float) -> None:
    """Adds ``TOKENIZE_PATH`` and ``DETOKENIZE_PATH`` to ``app``, whose ``state.chat`` is a ``Chat`` once it is up."""

    @app.post(
        TOKENIZE_PATH,
        summary="The tokens of a text, or of a conversation",
        tags=["tokens"],
        responses=TEXT_FAILURES,
        openapi_extra=json_body(schema_ref(TokenizeRequest)) | TIMEOUT_PARAMETER,
    )
    async def tokenize(request: Request) -> Tokenized:
        chat: Chat = app.state.chat
        caller = Caller.of(request, request_timeout)
        with chat.admitted():
            raw = await arrived(request, caller.deadline, body_timeout)
            body = await off_loop(validate, raw, TokenizeRequest, chat.context_length)
            check_model(body.model, model_name)
            with blamed_on("messages" if body.prompt is None else "prompt"):
                ids = await unless_gone(request, chat.tokenize(call_of(body, caller)))
            spelled = await asyncio.to_thread(_spelled, chat, ids) if body.return_token_strs else None
            return Tokenized(count=len(ids), max_model_len=chat.context_length, tokens=ids, token_strs=spelled)

    @app.post(
        DETOKENIZE_PATH,
        summary="The text of tokens, special ones included",
        tags=["tokens"],
        responses=TEXT_FAILURES,
        openapi_extra=json_body(schema_ref(DetokenizeRequest)) | TIMEOUT_PARAMETER,
    )
    async def detokenize(request: Request) -> Detokenized:
        chat: Chat = app.state.chat
        caller = Caller.of(request, request_timeout)
        with chat.admitted():
            raw = await arrived(request, caller.deadline, body_timeout)
            most = max(MAX_TOKENS, chat.context_length)
            body = await off_loop(validate_numbers, raw, DetokenizeRequest, "tokens", most)
            check_model(body.model, model_name)
            with blamed_on("tokens"):
                return Detokenized(prompt=await unless_gone(request, chat.detokenize(body.tokens, caller.deadline)))

    component_schemas(app, TokenizeRequest, DetokenizeRequest)


def call_of(body: TokenizeRequest, caller: Caller) -> ChatRequest:
    """What is to be tokenized."""
    return replace(ask_of(body, caller), text=body.prompt, special_tokens=body.add_special_tokens, max_tokens=None)


def _spelled(chat: Chat, token_ids: Sequence[int]) -> list[str]:
    spelled: list[str] = chat.tokenizer.convert_ids_to_tokens(token_ids)
    return spelled
