"""The basics through LangChain's ChatOpenAI."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.chats import MODEL
from tests.conformance.conftest import SCENE_BASE64
from tests.conformance.questions import ANSWER, ASK, Shape, about


class Weather(BaseModel):
    """The weather in a city."""

    city: str = Field(max_length=8)


@pytest.fixture
def chat(base_url: str) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=base_url, api_key="none", temperature=0, max_retries=0, max_completion_tokens=100)


def picture() -> HumanMessage:
    return HumanMessage(content=about()[0]["content"])


def test_a_picture_is_described(chat: ChatOpenAI) -> None:
    answer = chat.invoke([picture()])
    assert answer.content == ANSWER
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] > 0


def test_its_own_blocks_of_pictures_are_understood(chat: ChatOpenAI) -> None:
    block: Any = {"type": "image", "base64": SCENE_BASE64, "mime_type": "image/png"}
    assert chat.invoke([HumanMessage(content=[block, {"type": "text", "text": ASK}])]).content == ANSWER


def test_a_stream_is_the_answer(chat: ChatOpenAI) -> None:
    chunks = list(chat.stream([picture()], stream_usage=True))
    assert "".join(str(chunk.content) for chunk in chunks) == ANSWER
    assert any(chunk.usage_metadata for chunk in chunks)


async def test_an_async_stream_is_the_answer(chat: ChatOpenAI) -> None:
    assert "".join([str(chunk.content) async for chunk in chat.astream([picture()])]) == ANSWER


def test_a_batch_is_answered_in_order(chat: ChatOpenAI) -> None:
    answers = chat.batch([[picture()], [SystemMessage("Be brief."), HumanMessage("Hello!")], [picture()]])
    assert [answer.content == ANSWER for answer in answers] == [True, False, True]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_an_object(chat: ChatOpenAI, method: Any) -> None:
    shape = chat.with_structured_output(Shape, method=method).invoke([picture()])
    assert isinstance(shape, Shape)


def test_a_bound_tool_goes_round(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([Weather], tool_choice="Weather")
    question = HumanMessage("What is the weather?")
    asked = bound.invoke([question])
    assert isinstance(asked, AIMessage)
    assert [call["name"] for call in asked.tool_calls] == ["Weather"]
    result = ToolMessage("21 degrees", tool_call_id=asked.tool_calls[0]["id"] or "")
    assert isinstance(chat.invoke([question, asked, result]).content, str)
