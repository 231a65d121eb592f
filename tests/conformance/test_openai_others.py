"""The other endpoints and the raw responses through the official client."""

from __future__ import annotations

import openai
import pytest

from tests.chats import MODEL
from tests.conformance.questions import ANSWER, HELLO, PLAIN, about


def test_the_served_model_is_listed_and_found(sdk: openai.OpenAI) -> None:
    [listed] = sdk.models.list().data
    assert (listed.id, listed.object) == (MODEL, "model")
    assert sdk.models.retrieve(MODEL) == listed


def test_another_model_is_not_there(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("owner/another")
    assert caught.value.code == "model_not_found"


def test_a_raw_response_has_the_request_id_and_the_type(sdk: openai.OpenAI) -> None:
    raw = sdk.chat.completions.with_raw_response.create(messages=about(), extra_headers={"x-request-id": "mine-1"}, **PLAIN)
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content == ANSWER
    ours = sdk.chat.completions.create(messages=HELLO, max_tokens=1, **PLAIN)
    assert ours._request_id is not None
    assert ours._request_id.startswith("req-")


def test_a_legacy_completion_goes_on_with_its_prompt(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model=MODEL, prompt="A red circle at the", max_tokens=5, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_several_legacy_prompts_have_answers_in_order(sdk: openai.OpenAI) -> None:
    prompts = ["A red circle at the", "A blue square"]
    together = sdk.completions.create(model=MODEL, prompt=prompts, max_tokens=4, temperature=0)
    alone = [sdk.completions.create(model=MODEL, prompt=each, max_tokens=4, temperature=0) for each in prompts]
    assert [choice.index for choice in together.choices] == [0, 1]
    assert [choice.text for choice in together.choices] == [each.choices[0].text for each in alone]


def test_a_legacy_stream_is_the_completion(sdk: openai.OpenAI) -> None:
    whole = sdk.completions.create(model=MODEL, prompt="A red", max_tokens=6, temperature=0)
    chunks = list(sdk.completions.create(model=MODEL, prompt="A red", max_tokens=6, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_legacy_logprobs_have_the_old_shape(sdk: openai.OpenAI) -> None:
    logprobs = sdk.completions.create(model=MODEL, prompt="A red", max_tokens=3, temperature=0, logprobs=2).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 3
