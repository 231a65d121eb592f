"""The endpoints beside the chat, and its keys, through real services."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from examples.scenes import png, random_scene
from tests.chats import MODEL, user
from tests.conftest import Pair
from tests.processes import Service

CHAT, RENDER = "/v1/chat/completions", "/v1/chat/completions/render"
PLAIN: dict[str, Any] = {"model": MODEL, "temperature": 0}


@pytest.fixture
def sdk(pair: Pair) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{pair.language.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[Service]:
    """A language service that asks for keys, and lets pages of one origin in."""
    settings = {"encoders": pair.encoder.url, "api_key": "one,two", "cors_origins": "https://chat.example"}
    folder = tmp_path_factory.mktemp("keyed")
    with Service("language", folder, served_model_name="owner/demo", **settings).start(wait=False) as service:
        service.wait_until_ready(encoders=1)
        yield service


def of(service: Service, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0, timeout=60)


def picture(seed: int) -> bytes:
    return png(random_scene(random.Random(seed)), 224, seed)


def test_a_completion_goes_on_from_a_text_as_from_its_tokens(pair: Pair, sdk: openai.OpenAI) -> None:
    text = "A red circle at the"
    tokens = pair.client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    by_text, by_tokens = (sdk.completions.create(prompt=prompt, max_tokens=8, **PLAIN) for prompt in (text, tokens))
    assert by_text.choices[0].text == by_tokens.choices[0].text
    assert by_text.usage is not None
    assert by_text.usage.prompt_tokens == len(tokens)
    echoed = sdk.completions.create(prompt=tokens, max_tokens=8, echo=True, **PLAIN)
    assert echoed.choices[0].text == text + by_text.choices[0].text


def test_a_chat_is_the_completion_of_its_rendered_prompt(pair: Pair, sdk: openai.OpenAI) -> None:
    chat = pair.client.post(CHAT, json=user("Hello!", max_tokens=12)).json()
    rendered = pair.client.post(RENDER, json=user("Hello!", max_tokens=12)).json()
    went_on = sdk.completions.create(prompt=rendered["prompt"], max_tokens=12, **PLAIN)
    assert went_on.choices[0].text == chat["choices"][0]["message"]["content"]
    assert went_on.usage is not None
    assert went_on.usage.prompt_tokens == chat["usage"]["prompt_tokens"] == rendered["prompt_tokens"]


def test_several_prompts_and_answers_are_choices_in_order_whole_and_streamed(sdk: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "prompt": ["A red", "A blue circle"],
        "n": 2,
        "seed": 3,
        "max_tokens": 6,
        "echo": True,
    }
    whole = sdk.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert [choice.text.startswith("A red") for choice in whole.choices] == [True, True, False, False]
    texts = [""] * 4
    ends: list[str | None] = [None] * 4
    stream = sdk.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
    *chunks, last = list(stream)
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_a_completion_keeps_to_its_form(sdk: openai.OpenAI) -> None:
    form = {"structured_outputs": {"choice": ["left", "right"]}}
    answer = sdk.completions.create(prompt="A red circle at the", extra_body=form, **PLAIN)
    assert answer.choices[0].text in ("left", "right")
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_with_a_completion_is_a_status_for_streams_too(sdk: openai.OpenAI, stream: bool) -> None:
    for prompt in ("word " * 20_000, [1, 99_999], "<|image_pad|>"):
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.completions.create(prompt=prompt, stream=stream, **PLAIN)
        assert (caught.value.code, caught.value.param) == ("invalid_request", "prompt")


def test_tokens_and_text_are_the_same_there_and_back(pair: Pair) -> None:
    text = "A red circle — at the top."
    told = pair.client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert pair.client.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": text}
    unknown = pair.client.post("/detokenize", json={"tokens": [5, 10**6]})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "tokens")


def test_a_conversation_has_the_tokens_of_its_chat(pair: Pair) -> None:
    chat = pair.client.post(CHAT, json=user("Hello!", max_tokens=1, return_token_ids=True)).json()
    assert pair.client.post("/tokenize", json=user("Hello!")).json()["tokens"] == chat["prompt_token_ids"]


def test_a_prompt_with_pictures_is_rendered_as_the_model_sees_it(pair: Pair) -> None:
    request = user(picture(1), "and", picture(2), picture(1), "Compare them.", max_tokens=5, return_token_ids=True)
    rendered = pair.client.post(RENDER, json=request).json()
    chat = pair.client.post(CHAT, json=request).json()
    ids = rendered["prompt_token_ids"]
    assert ids == chat["prompt_token_ids"]
    assert (rendered["max_tokens"], rendered["prompt_tokens"]) == (5, chat["usage"]["prompt_tokens"])
    items = rendered["items"]
    assert [item["param"] for item in items] == [f"messages.0.content.{at}.image_url" for at in (0, 2, 3)]
    assert items[0]["content_hash"] == items[2]["content_hash"] != items[1]["content_hash"]
    pad = ids[items[0]["spans"][0][0]]
    places = [at for start, tokens in (span for item in items for span in item["spans"]) for at in range(start, start + tokens)]
    assert places == [at for at, token in enumerate(ids) if token == pad]
    shown = f"<|vision_start|><|image_pad|>×{items[0]['num_tokens']}<|vision_end|>and<|vision_start|>"
    assert shown in rendered["prompt"]


def test_a_rendered_form_is_the_grammar_that_binds_the_answer(pair: Pair) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    assert pair.client.post(RENDER, json=user("Hello!", response_format=form)).json()["grammar"]
    assert pair.client.post(RENDER, json=user("Hello!")).json()["grammar"] is None


@pytest.mark.parametrize("path", [CHAT, RENDER])
def test_a_picture_that_does_not_arrive_in_time_is_neither_answered_nor_rendered(pair: Pair, path: str) -> None:
    body = user(picture(3), "What is it?", max_tokens=1)
    response = pair.client.post(path, json=body, headers={"x-request-timeout": "0.001"})
    assert (response.status_code, response.json()["error"]["type"]) == (503, "service_unavailable_error")
    assert response.headers["retry-after"]


def test_a_model_is_found_by_a_name_with_a_slash_and_another_is_not(keyed: Service) -> None:
    with of(keyed, "one") as client:
        [listed] = client.models.list().data
        assert client.models.retrieve("owner/demo") == listed
        for name in ("owner", "owner/demo/more", "demo"):
            with pytest.raises(openai.NotFoundError) as caught:
                client.models.retrieve(name)
            assert caught.value.code == "model_not_found"


def test_only_holders_of_a_key_are_served(keyed: Service) -> None:
    for key in ("one", "two"):
        with of(keyed, key) as client:
            assert client.completions.create(model="owner/demo", prompt="A red", max_tokens=1).choices
    with of(keyed, "three") as client:
        for call in (
            client.models.list,
            lambda: client.completions.create(model="owner/demo", prompt="A red"),
            lambda: client.chat.completions.create(
                model="owner/demo", messages=[{"role": "user", "content": "x"}], stream=True
            ),
        ):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert caught.value.code == "invalid_api_key"
    for log in ("one", "two", "three"):
        assert f"Bearer {log}" not in keyed.log.read_text()


def test_probes_and_the_seam_need_no_key(keyed: Service) -> None:
    with httpx.Client(base_url=keyed.url, trust_env=False) as client:
        assert [client.get(path).status_code for path in ("/health", "/ready", "/metrics", "/openapi.json")] == [200] * 4
        assert [client.post(path).status_code for path in (CHAT, "/tokenize", "/detokenize")] == [401] * 3
        refused = client.post("/v1/encoders", json={})
    # What is missing there is the token of the seam.
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")


def test_pages_of_a_named_origin_read_answers_and_errors(keyed: Service) -> None:
    here = {"origin": "https://chat.example"}
    asked = here | {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with httpx.Client(base_url=keyed.url, trust_env=False) as client:
        preflight = client.options(CHAT, headers=asked)
        refused = client.post(CHAT, headers=here)
        foreign = client.post(CHAT, headers={"origin": "https://other.example"})
    assert (preflight.status_code, refused.status_code) == (200, 401)
    for response in (preflight, refused):
        assert response.headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-origin" not in foreign.headers


def test_what_is_one_keys_name_for_a_picture_is_not_anothers(keyed: Service) -> None:
    def hash_of(key: str, seed: int) -> str:
        body = user(picture(seed), "What is it?", mm_hashes=["mine"]) | {"model": "owner/demo"}
        headers = {"authorization": f"Bearer {key}"}
        response = httpx.post(keyed.url + RENDER, json=body, headers=headers, timeout=60, trust_env=False)
        content_hash: str = response.json()["items"][0]["content_hash"]
        return content_hash

    assert hash_of("one", 4) == hash_of("one", 5)
    assert hash_of("two", 4) != hash_of("one", 4)


def test_what_is_no_text_in_a_call_counts_for_the_prompt_too(pair: Pair) -> None:
    function = {"name": "sum", "arguments": {"of": [10**4000] * 100}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": function}]}]
    answer = pair.client.post("/tokenize", json={"messages": messages})
    assert answer.status_code == 400, answer.text
    assert "characters of text cannot fit" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("tokens", "param"), [(2048, "prompt"), (2047, "max_tokens")])
def test_a_prompt_that_leaves_no_room_is_at_fault_itself(pair: Pair, tokens: int, param: str) -> None:
    answer = pair.client.post("/v1/completions", json={"prompt": [1] * tokens, "max_tokens": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
