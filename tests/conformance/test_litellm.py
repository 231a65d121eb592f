"""The basics through LiteLLM, as an OpenAI-compatible server of its own name."""

from __future__ import annotations

import json
from typing import Any

import litellm
import pytest

from tests.chats import MODEL
from tests.conformance.questions import ANSWER, HELLO, WEATHER, Shape, about

# LiteLLM's own business.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Item .* on TypedDict:UserWarning", "ignore:Accessing the 'model_:DeprecationWarning"
)


@pytest.fixture
def options(base_url: str) -> dict[str, Any]:
    """What every call says."""
    return {"model": f"openai/{MODEL}", "api_base": base_url, "api_key": "none", "temperature": 0, "max_retries": 0}


def test_a_picture_is_described(options: dict[str, Any]) -> None:
    answer: Any = litellm.completion(messages=about(), **options)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_an_async_call_is_answered(options: dict[str, Any]) -> None:
    answer: Any = await litellm.acompletion(messages=about(), **options)
    assert answer.choices[0].message.content == ANSWER


def test_a_stream_is_the_answer(options: dict[str, Any]) -> None:
    chunks: Any = litellm.completion(messages=about(), stream=True, stream_options={"include_usage": True}, **options)
    seen = list(chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in seen if chunk.choices) == ANSWER
    rebuilt: Any = litellm.stream_chunk_builder(seen)
    assert rebuilt.choices[0].finish_reason == "stop"
    assert rebuilt.usage.completion_tokens > 0


def test_a_schema_binds_the_answer(options: dict[str, Any]) -> None:
    answer: Any = litellm.completion(messages=about(), response_format=Shape, max_tokens=64, **options)
    Shape.model_validate_json(answer.choices[0].message.content)


def test_a_tool_is_called(options: dict[str, Any]) -> None:
    answer: Any = litellm.completion(messages=HELLO, tools=[WEATHER], tool_choice="required", max_tokens=100, **options)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}


def test_a_bad_request_is_its_bad_request_error(options: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=HELLO, **options | {"temperature": 3})


def test_an_unknown_model_is_its_not_found_error(options: dict[str, Any]) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=HELLO, **options | {"model": "openai/another"})
