"""Prompts of token ids through the real pair: field case 8, and all that is near it."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from examples.scenes import png, random_scene
from tests.chats import MODEL, data_url, user
from tests.conftest import Pair

QUESTION = "Describe the first picture."


def pictures(seed: int, number: int) -> list[bytes]:
    # Their sizes differ, and so do their token counts.
    return [png(random_scene(random.Random(seed + at)), (96, 224)[at % 2], seed + at) for at in range(number)]


def chat(pair: Pair, *parts: bytes | str) -> dict[str, Any]:
    """The answer to messages: what all prompts of tokens are compared with."""
    response = pair.client.post("/v1/chat/completions", json=user(*parts, max_tokens=12, return_token_ids=True))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def by_tokens(pair: Pair, token_ids: list[int], shown: list[bytes], **fields: Any) -> httpx.Response:
    """The response to a prompt of tokens, with media beside it."""
    content = [{"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in shown]
    messages = [{"role": "user", "content": content}] if content else []
    body = {"model": MODEL, "temperature": 0, "max_tokens": 12, "return_token_ids": True, "messages": messages}
    return pair.client.post("/v1/chat/completions", json=body | {"prompt_token_ids": token_ids} | fields)


def placeholder_of(token_ids: list[int]) -> int:
    """The media token: the one that comes most often in a row."""
    return max(set(token_ids), key=token_ids.count)


def collapsed(token_ids: list[int], which: tuple[int, ...]) -> list[int]:
    """The prompt with these of its items as one placeholder each."""
    pad, ids, item = placeholder_of(token_ids), list[int](), -1
    for at, token in enumerate(token_ids):
        again = token == pad and at > 0 and token_ids[at - 1] == pad
        item += token == pad and not again
        if not (again and item in which):
            ids.append(token)
    return ids


@pytest.mark.parametrize("which", [(), (0,), (1,), (0, 1)], ids=["expanded", "first single", "second single", "single"])
def test_8_placeholders_are_expanded_once_whether_they_were_before_or_not(pair: Pair, which: tuple[int, ...]) -> None:
    shown = pictures(100 + len(which) + sum(which), 2)
    wanted = chat(pair, *shown, QUESTION)
    response = by_tokens(pair, collapsed(wanted["prompt_token_ids"], which), shown)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["prompt_token_ids"] == wanted["prompt_token_ids"]
    assert found["choices"][0]["token_ids"] == wanted["choices"][0]["token_ids"]
    assert found["usage"]["prompt_tokens"] == len(wanted["prompt_token_ids"])


def test_a_prompt_of_text_needs_no_messages(pair: Pair) -> None:
    wanted = chat(pair, "Hello!")
    body = {"prompt_token_ids": wanted["prompt_token_ids"], "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    found = pair.client.post("/v1/chat/completions", json=body).json()
    assert found["choices"][0]["token_ids"] == wanted["choices"][0]["token_ids"]


def test_what_the_messages_say_beside_is_not_tokenized(pair: Pair) -> None:
    shown = pictures(120, 1)
    wanted = chat(pair, *shown, QUESTION)
    beside = user(*shown, "Something else, <|image_pad|> and all.")["messages"]
    found = by_tokens(pair, wanted["prompt_token_ids"], [], messages=beside).json()
    assert found["prompt_token_ids"] == wanted["prompt_token_ids"]
    assert found["choices"][0]["token_ids"] == wanted["choices"][0]["token_ids"]


def test_the_picture_in_the_prompt_is_found_in_the_prefix_cache(pair: Pair) -> None:
    shown = pictures(130, 1)
    wanted = chat(pair, *shown, QUESTION)
    found = by_tokens(pair, wanted["prompt_token_ids"], shown).json()
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_counts_that_do_not_fit_are_told(pair: Pair, stream: bool) -> None:
    shown = pictures(140, 1)
    ids = chat(pair, *shown, QUESTION)["prompt_token_ids"]
    pad = placeholder_of(ids)
    tokens = ids.count(pad)
    at = ids.index(pad)
    for given, taken, told in (
        ([*ids[:at], pad, *ids[at:]], shown, f"{tokens + 1} placeholders, which fit neither one for each of 1 pictures nor "),
        ([*ids[:at], *ids[at + 1 :]], shown, f"{tokens - 1} placeholders"),
        (ids, [], f"0 pictures, but prompt_token_ids has {tokens}"),
        ([token for token in ids if token != pad], shown, "1 pictures, but prompt_token_ids has 0"),
        ([*ids, 10**6], shown, "names token 1000000; the vocabulary has"),
        ([1] * 3000, [], "The prompt has 3000 tokens"),
    ):
        response = by_tokens(pair, given, taken, stream=stream)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "invalid_request"), error
        assert told in error["message"]


@pytest.mark.parametrize("value", [[], [-1], ["a"], 7, [2**40]])
def test_what_are_no_tokens_is_refused(pair: Pair, value: object) -> None:
    response = pair.client.post("/v1/chat/completions", json={"prompt_token_ids": value})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert (error["param"] or "").startswith("prompt_token_ids")


def test_a_kind_that_the_model_does_not_take_is_refused_by_name(pair: Pair) -> None:
    body = user("What do you hear?")
    body["messages"][0]["content"].append({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}})
    error = pair.client.post("/v1/chat/completions", json=body).json()["error"]
    assert error["code"] == "invalid_request"
    assert "takes no sounds" in error["message"]
    assert error["param"] == "messages.0.content.1.input_audio"
