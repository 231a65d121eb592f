"""Tokens, and prompts as the model sees them: what is taken, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx
import pytest
import torch
from fastapi import FastAPI

from services.language.api.render import rendered
from services.language.api.tokens import DETOKENIZE_PATH, TOKENIZE_PATH, install_token_routes
from services.language.chat import Prepared
from services.language.deadline import Deadline
from services.language.engine.interface import Prompt, Sampling, Span
from services.language.models.generic import Positions
from services.language.output.shape import Shape
from services.language.prompt.conversation import Conversation, MediaSource
from services.language.request import ChatRequest
from shared.errors import EngineOverloaded, InvalidRequest
from shared.http import install
from shared.identity import MediaItem
from shared.layout import Layout
from shared.lifecycle import Drain
from shared.telemetry import Metrics

PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
HELLO = [{"role": "user", "content": "ab"}]
PAD, MARK, OUTSIDE = 90, 91, 1000


class Letters:
    """A tokenizer to which token 97 is ``a``, and so on; two are media's."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join({PAD: "<pad>", MARK: "<mark>", OUTSIDE: ""}.get(token, chr(token)) for token in token_ids)

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [f"_{chr(token)}" for token in token_ids]


class Service:
    """A chat service whose tokens are letters."""

    context_length = 100
    tokenizer = Letters()

    def __init__(self) -> None:
        self.calls: list[ChatRequest] = []

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def tokenize(self, request: ChatRequest) -> list[int]:
        self.calls.append(request)
        text = "".join(request.conversation.texts()) if request.text is None else request.text
        if len(text) > 10:
            raise InvalidRequest("It is too long.", param="messages")
        return [ord(letter) for letter in text]

    async def detokenize(self, token_ids: Sequence[int], deadline: Deadline) -> str:
        if len(token_ids) > 10:
            raise InvalidRequest("There are too many.", param="messages")
        return self.tokenizer.decode(token_ids)


async def posted(path: str, body: Any, service: Service | None = None) -> tuple[int, dict[str, Any]]:
    app = FastAPI()
    install(app, Metrics(), 2**22, Drain(1.0, lambda: EngineOverloaded("ending")), work=(TOKENIZE_PATH, DETOKENIZE_PATH))
    install_token_routes(app, "demo", 10.0, 10.0)
    app.state.chat = service or Service()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://language") as client:
        response = await client.post(path, content=json.dumps(body))
    return response.status_code, response.json()


async def test_a_text_becomes_tokens_with_the_tokenizers_beginning_unless_told_otherwise() -> None:
    service = Service()
    answer = await posted(TOKENIZE_PATH, {"prompt": "ab", "model": "demo"}, service)
    assert answer == (200, {"count": 2, "max_model_len": 100, "tokens": [97, 98], "token_strs": None})
    await posted(TOKENIZE_PATH, {"prompt": "ab", "add_special_tokens": False}, service)
    assert [call.special_tokens for call in service.calls] == [True, False]
    assert (await posted(TOKENIZE_PATH, {"prompt": ""}))[1]["count"] == 0


async def test_a_conversation_is_tokenized_as_a_chat_is() -> None:
    service = Service()
    tool = {"type": "function", "function": {"name": "look"}}
    body = {
        "messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": "ab"}]}],
        "tools": [tool],
        "chat_template_kwargs": {"x": 1},
        "add_generation_prompt": False,
        "return_token_strs": True,
    }
    status, answer = await posted(TOKENIZE_PATH, body, service)
    conversation = service.calls[0].conversation
    assert (status, answer["token_strs"][:2]) == (200, ["_a", "_b"])
    assert (conversation.kinds, [tool.name for tool in conversation.tools]) == (["image"], ["look"])
    assert (conversation.kwargs, conversation.add_generation_prompt) == ({"x": 1}, False)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "prompt"),
        ({"prompt": "a", "messages": HELLO}, 400, "prompt"),
        ({"prompt": 1}, 400, "prompt"),
        ({"messages": [{"role": "pilot", "content": "x"}]}, 400, "messages.0.role"),
        ({"prompt": "a" * 11}, 400, "prompt"),
        ({"messages": [{"role": "user", "content": "a" * 11}]}, 400, "messages"),
        ({"prompt": "a", "model": "other"}, 404, "model"),
        ([], 400, None),
    ],
)
async def test_what_cannot_be_tokenized_is_named(body: Any, status: int, param: str | None) -> None:
    found, answer = await posted(TOKENIZE_PATH, body)
    assert (found, answer["error"]["param"]) == (status, param)


async def test_tokens_become_text() -> None:
    assert await posted(DETOKENIZE_PATH, {"tokens": [97, PAD, 98]}) == (200, {"prompt": "a<pad>b"})
    assert await posted(DETOKENIZE_PATH, {"tokens": []}) == (200, {"prompt": ""})


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "tokens"),
        ({"tokens": "ab"}, 400, "tokens"),
        ({"tokens": [97, -1]}, 400, "tokens.1"),
        ({"tokens": [97] * 11}, 400, "tokens"),
        ({"tokens": [97] * 60_000, "x": [97] * 60_000}, 400, None),
        ({"tokens": [97] * 140_000}, 400, "tokens"),
        ({"tokens": [97], "model": "other"}, 404, "model"),
    ],
)
async def test_what_is_no_list_of_tokens_is_named(body: Any, status: int, param: str | None) -> None:
    found, answer = await posted(DETOKENIZE_PATH, body)
    assert (found, answer["error"]["param"]) == (status, param)


def item_of(tokens: int, layout: Layout | None = None, content_hash: str = "h1") -> MediaItem:
    item = MediaItem("image", tokens, (1, 2, 2), layout)
    item.set_hash(content_hash)
    return item


def shown(token_ids: list[int], items: list[MediaItem], spans: tuple[Span, ...], grammar: str | None = None) -> dict[str, Any]:
    """What is shown of a request whose prompt is ``token_ids``."""
    media = tuple(MediaSource(at, "image", f"messages.0.content.{at}.image_url") for at in range(len(items)))
    call = ChatRequest("r", Conversation([], media), [], None, Sampling(1), Deadline(9))
    prompt = Prompt(token_ids, Positions(torch.arange(len(token_ids))[None], len(token_ids)), spans)
    ready = Prepared(prompt, items, Sampling(7, stop_token_ids=frozenset({5, 3})), Shape(grammar))
    return rendered("demo", Letters(), call, ready).model_dump()


def test_runs_of_media_tokens_are_shown_once_with_their_number() -> None:
    item = item_of(3)
    answer = shown([97, PAD, PAD, PAD, 98], [item], (Span(1, item, 0, 3),), "start: /a/")
    assert answer == {
        "object": "chat.completion.render",
        "model": "demo",
        "prompt": "a<pad>×3b",
        "prompt_token_ids": [97, PAD, PAD, PAD, 98],
        "prompt_tokens": 5,
        "items": [
            {
                "index": 0,
                "modality": "image",
                "param": "messages.0.content.0.image_url",
                "content_hash": "h1",
                "num_tokens": 3,
                "prompt_tokens": 3,
                "grid_thw": (1, 2, 2),
                "spans": [(1, 3)],
            }
        ],
        "stop_token_ids": [3, 5],
        "max_tokens": 7,
        "grammar": "start: /a/",
    }


def test_an_item_in_rows_has_a_span_for_each_and_its_marks_are_text() -> None:
    item = item_of(4, Layout(((PAD, 2), (MARK, 1), (PAD, 2))))
    spans = Span(0, item, 0, 2), Span(3, item, 2, 2)
    answer = shown([PAD, PAD, MARK, PAD, PAD], [item], spans)
    assert answer["prompt"] == "<pad>×2<mark><pad>×2"
    [told] = answer["items"]
    assert (told["spans"], told["num_tokens"], told["prompt_tokens"]) == ([(0, 2), (3, 2)], 4, 5)


def test_items_are_told_apart_where_one_stands_twice_and_others_come_in_another_order() -> None:
    again, other = item_of(1), item_of(2, content_hash="h2")
    spans = Span(0, other, 0, 2), Span(2, again, 0, 1), Span(3, again, 0, 1)
    answer = shown([PAD, PAD, PAD, PAD], [again, other, again], spans)
    assert answer["prompt"] == "<pad>×2<pad>×1<pad>×1"
    assert [told["spans"] for told in answer["items"]] == [[(2, 1)], [(0, 2)], [(3, 1)]]


def test_a_media_token_without_a_text_is_shown_by_its_number() -> None:
    item = item_of(2)
    assert shown([OUTSIDE, OUTSIDE], [item], (Span(0, item, 0, 2),))["prompt"] == "<1000>×2"
