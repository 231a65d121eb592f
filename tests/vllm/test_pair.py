"""The demo model, which has deepstack, through every door of the API: what holds with the other engine holds with vLLM."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.chats import user
from tests.conftest import Pair
from tests.integration.test_pair import (  # noqa: F401
    answer,
    content,
    events,
    sdk,
    test_200_scenes_give_the_tokens_of_the_undivided_model,
    test_a_second_turn_reuses_the_first,
    test_a_stream_says_the_same_as_the_whole,
    test_conversations_of_several_turns_with_a_system_prompt,
    test_every_response_has_the_request_id,
    test_logprobs_through_the_official_client,
    test_several_answers_whole_and_streamed,
    test_stop_strings_token_limits_and_seeds,
    test_text_gives_the_tokens_of_the_undivided_model,
    test_the_official_asynchronous_client,
    test_the_official_client_gets_typed_errors,
    test_the_official_client_whole_and_streamed,
    undivided,
)
from tests.integration.test_structured_output import (  # noqa: F401
    SCHEMAS,
    asked,
    test_a_form_that_is_none_is_400_and_says_which,
)

pytestmark = pytest.mark.vllm

BOUNDED = ("enum", "short text", "bounded", "flags")
"""Schemas that let no answer become long: by the others, a model that never learned JSON goes on to its last token here."""


def test_answers_match_their_schemas(pair: Pair) -> None:
    bodies = [(name, asked(name, number)) for name in BOUNDED for number in range(8)]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda named: answer(pair, named[1]), bodies))
    for (name, _), body in zip(bodies, answers, strict=True):
        assert body["choices"][0]["finish_reason"] == "stop"
        jsonschema.validate(json.loads(content(body)), SCHEMAS[name])


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"choice": ["red", "green"]}, "red|green"),
        ({"regex": r"\d{3}-[a-f]{1,9}"}, r"\d{3}-[a-f]{1,9}"),
        ({"grammar": 'start: "yes" | "no"'}, "yes|no"),
    ],
)
def test_other_forms_bind_answers_streamed_or_not(pair: Pair, form: dict[str, Any], pattern: str) -> None:
    body = user("Who are you?", seed=1, temperature=1, structured_outputs=form)
    whole = content(answer(pair, body))
    assert re.fullmatch(pattern, whole)
    streamed = events(pair.client.post("/v1/chat/completions", json=body | {"stream": True}).text)
    assert "".join(part["choices"][0]["delta"].get("content") or "" for part in streamed) == whole


def test_the_language_service_has_no_vision_weights(pair: Pair, demo_model: Path) -> None:
    """vLLM rounds the vocabulary up; besides that it has the checkpoint's language half to the last parameter."""
    encoder, language = (
        httpx.get(f"{service.url}/v1/info", trust_env=False).json() for service in (pair.encoder, pair.language)
    )
    assert language["parameters"].keys() == {"language_model"}
    header = json.loads((demo_model / "model.safetensors").read_bytes()[8:].split(b"}}", 1)[0] + b"}}")
    header.pop("__metadata__", None)
    whole = sum(int(entry["data_offsets"][1] - entry["data_offsets"][0]) // 4 for entry in header.values())
    [rows, width] = header["model.language_model.embed_tokens.weight"]["shape"]
    assert language["parameters_total"] == whole - encoder["parameters_total"] + (-rows % 64) * width


def test_a_seed_gives_the_same_tokens_in_however_many_steps_the_prompt_is_computed(pair: Pair) -> None:
    """The first time in several, the second time in one, since most of it is known."""
    body = user("y " * 1200, temperature=1, seed=7, max_tokens=16, ignore_eos=True, return_token_ids=True)
    first, second = answer(pair, body), answer(pair, body)
    assert first["usage"]["prompt_tokens"] > 1024
    assert (first["usage"]["prompt_tokens_details"]["cached_tokens"] or 0) < 100
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 1000
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
