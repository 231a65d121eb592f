"""What the OpenAPI document of the language service says beside the routes: what it is for, keys, examples, and streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from services.language.api.ask import TIMEOUT_HEADER
from shared.errors import (
    EmbeddingCorrupt,
    EmbeddingIncompatible,
    EmbeddingIncomplete,
    EmbeddingTimeout,
    EncoderFailed,
    EncoderLost,
    EncoderOverloaded,
    EncoderUnavailable,
    EngineOverloaded,
    ErrorBody,
    InvalidApiKey,
    InvalidMedia,
    InvalidRequest,
    ModelNotFound,
)
from shared.http import schema_ref
from shared.openapi import Responses, Token, complete, failures

DESCRIPTION = """OpenAI's API over a vision-language model whose vision half is computed elsewhere, by encoders.

Every failure is OpenAI's error object with a code of its own. A failure before the first token is an HTTP status, for streams
too. Fields that are unknown are ignored; those that are known, would change the answer, and are not served are refused."""

_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
_ASKED = {"role": "user", "content": [_PICTURE, {"type": "text", "text": "Describe the picture."}]}
_SHAPE = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
_CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}

CHATS: dict[str, dict[str, Any]] = {
    "a_picture": {"model": "demo_model", "messages": [_ASKED], "temperature": 0},
    "a_stream_with_usage": {
        "messages": [{"role": "user", "content": "Hello!"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "an_object_of_a_schema": {
        "messages": [_ASKED],
        "response_format": {"type": "json_schema", "json_schema": {"name": "shape", "schema": _SHAPE}},
    },
    "a_tool": {
        "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": _CITY}}],
        "tool_choice": "required",
    },
}
"""Requests, by what they show."""

TIMEOUT_PARAMETER: dict[str, Any] = {
    "parameters": [
        {
            "name": TIMEOUT_HEADER,
            "in": "header",
            "schema": {"type": "number", "exclusiveMinimum": 0},
            "example": 30,
            "description": "Seconds that the request may take; past them it is answered 503.",
        }
    ]
}
"""The header by which a caller gives a request less time."""

_USAGE = {
    "prompt_tokens": 18,
    "completion_tokens": 16,
    "total_tokens": 34,
    "prompt_tokens_details": {"cached_tokens": 0, "image_tokens": 4, "video_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
_TEXT = "A red circle at the top left and a blue square at the bottom right."
_HEAD: dict[str, Any] = {"created": 1700000000, "model": "demo_model", "system_fingerprint": "fp_75477126479f"}
_CHAT: dict[str, Any] = {"id": "chatcmpl-53b8b4e4837c4be2", "object": "chat.completion", **_HEAD}
_LEGACY: dict[str, Any] = {"id": "cmpl-6d74e7b1f7c54f04", "object": "text_completion", **_HEAD}

CHAT_ANSWER: dict[str, Any] = _CHAT | {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": _TEXT, "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ],
    "usage": _USAGE,
}

CHAT_EVENTS = (
    'data: {"id":"chatcmpl-53b8…","object":"chat.completion.chunk",…,'
    '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    'data: {…,"choices":[{"index":0,"delta":{"content":"A red"},"finish_reason":null}]}\n\n'
    'data: {…,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    "data: [DONE]\n\n"
)

TEXT_ANSWER: dict[str, Any] = _LEGACY | {
    "choices": [{"index": 0, "text": " at the top left", "logprobs": None, "finish_reason": "stop"}],
    "usage": _USAGE,
}

TEXT_EVENTS = (
    'data: {"id":"cmpl-6d74…","object":"text_completion",…,"choices":[{"index":0,"text":" at",…}]}\n\n'
    'data: {…,"choices":[{"index":0,"text":"","finish_reason":"stop",…}]}\n\n'
    "data: [DONE]\n\n"
)

_NO_EMBEDDINGS = (
    EncoderUnavailable,
    EncoderFailed,
    EncoderLost,
    EncoderOverloaded,
    EmbeddingTimeout,
    EmbeddingIncomplete,
    EmbeddingCorrupt,
    EmbeddingIncompatible,
)

TEXT_FAILURES = failures(
    InvalidRequest,
    ModelNotFound,
    EngineOverloaded,
    invalid_request="temperature: Input should be less than or equal to 2",
    model_not_found="The model 'gpt-4o' is not served here; 'demo_model' is.",
)
"""How requests without media may fail."""

MEDIA_FAILURES = failures(
    InvalidRequest,
    InvalidMedia,
    ModelNotFound,
    *_NO_EMBEDDINGS,
    EngineOverloaded,
    invalid_request="temperature: Input should be less than or equal to 2",
    model_not_found="The model 'gpt-4o' is not served here; 'demo_model' is.",
)
"""How requests with media may fail."""


def answers(whole: dict[str, Any], chunk: type[BaseModel], events: str) -> Responses:
    """The two forms of an answer: JSON, and with ``stream`` server-sent events, each of which has a ``chunk`` as its data; the
    last one is ``[DONE]``, or an error."""
    shapes = [{"const": "[DONE]"}, *(_json_text(schema_ref(model)) for model in (chunk, ErrorBody))]
    event = {"type": "object", "properties": {"data": {"anyOf": shapes}}, "required": ["data"]}
    return {
        200: {
            "description": "The answer; with `stream` events of its chunks, and comments where nothing comes for long.",
            "content": {
                "application/json": {"example": whole},
                "text/event-stream": {"schema": event, "example": events},
            },
        }
    }


def _json_text(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def complete_document(app: FastAPI, is_guarded: Callable[[str, str], bool], keys: bool, secret: bool) -> None:
    """Completes the OpenAPI document of ``app``. ``is_guarded`` says of a method and a path whether they take an API key, where
    there are ``keys``; with a ``secret`` the registration of encoders takes the seam's token."""
    tokens = []
    if keys:
        refused = failures(InvalidApiKey, invalid_api_key="The API key is none that this service knows.")
        tokens.append(Token("key", "One of the keys in EPD_API_KEY.", is_guarded, refused))
    if secret:
        takes = ("POST", "/v1/encoders")
        tokens.append(Token("seam", "The token of the services' secret.", lambda method, path: (method, path) == takes))
    complete(app, tokens)
