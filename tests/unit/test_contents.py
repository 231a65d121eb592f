"""What messages say reaches the prompt, as text and as parts, whichever of these a chat template knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.language.output.format import Tool
from services.language.prompt.conversation import Conversation
from services.language.prompt.template import ChatTemplate
from tests.families import idefics, llava, mistral
from tests.families.parts import make_tokenizer
from tests.unit.test_tooling import QWEN

TEMPLATES = {
    "text only": QWEN,
    "parts only": llava.TEMPLATE,
    "parts only, by place": idefics.TURNS,
    "parts of users only": mistral.TEMPLATE,
    "both": "{% for message in messages %}"
    "{{ message.content if message.content is string else message.content | join(attribute='text') }}{% endfor %}",
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}
TOOL = Tool("f", "What it does.")


def said(content: Any) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": content("It rains.")},
        {"role": "user", "content": content("How is it?")},
        {"role": "assistant", "content": content("I look."), "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": content("Sunny.")},
        {"role": "assistant", "content": content("It was wrong.")},
        {"role": "user", "content": content("Thanks!")},
    ]


def prompt(template: str, messages: list[dict[str, Any]], *tools: Tool) -> str:
    tokenizer = make_tokenizer(template, "<image>", "[INST]", "[/INST]", "[IMG]", *idefics.MARKS)
    text: str = tokenizer.decode(ChatTemplate(tokenizer).tokenize(Conversation(messages, tools=tools)))
    return text


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_and_parts_are_the_same_prompt(name: str) -> None:
    messages = [message for message in said(str) if message["role"] != "tool" and "tool_calls" not in message]
    text = prompt(TEMPLATES[name], messages)
    assert all(message["content"] in text for message in messages)
    assert "'text'" not in text
    assert prompt(TEMPLATES[name], [{**message, "content": parts(message["content"])} for message in messages]) == text


@pytest.mark.parametrize("content", [str, parts], ids=["text", "parts"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_calls_and_results_reach_every_template(name: str, content: Any) -> None:
    text = prompt(TEMPLATES[name], said(content), TOOL)
    called = json.dumps({"name": "f", "arguments": {}})
    for told in ("It rains.", "How is it?", called, "Sunny.", "It was wrong.", "Thanks!", "What it does."):
        assert told in text, told
    assert "'text'" not in text


def test_parts_with_media_stay_parts() -> None:
    content = [{"type": "image"}, *parts("What is it?")]
    text = prompt(llava.TEMPLATE, [{"role": "user", "content": content}])
    assert text.split() == ["USER:", "<image>", "What", "is", "it?", "ASSISTANT:"]
