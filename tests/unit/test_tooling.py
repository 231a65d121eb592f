"""Tools, calls and results in prompts: in the template's own way where it has one, else in words; people's text stays text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from services.language.output.format import Tool
from services.language.prompt.conversation import Conversation
from services.language.prompt.template import ChatTemplate
from services.language.prompt.tooling import knows_tools
from shared.errors import InvalidRequest
from tests.processes import DEMO_MODEL
from tests.unit.output.dialects import tokenizer_with

# In the form that Qwen publishes: tools in the system's message, results in the user's.
QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\n\\nCalls: <tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = (Tool("get_weather", "The weather of a place, <b>now</b>.", PARAMETERS), Tool("clock"))
OBJECTS = [
    {"type": "function", "function": {"name": "get_weather", "description": TOOLS[0].description, "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "clock"}},
]


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


CALLED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is it in Köln?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I must look.",
        "tool_calls": [call("get_weather", {"place": 'Köln "Süd" 日本'}), call("clock", {})],
    },
    {"role": "tool", "tool_call_id": "call_get_weather", "content": "rain"},
    {"role": "tool", "tool_call_id": "call_clock", "content": "noon"},
]


@pytest.fixture(scope="module")
def qwen() -> Any:
    tokenizer = tokenizer_with(["<tool_call>", "</tool_call>", "<think>", "</think>"], special=False)
    tokenizer.chat_template = QWEN
    return tokenizer


@pytest.fixture(scope="module")
def demo() -> Any:
    return PreTrainedTokenizerFast.from_pretrained(DEMO_MODEL)


def stock(tokenizer: Any, messages: list[dict[str, Any]], **more: Any) -> list[int]:
    arguments = {"add_generation_prompt": True, "tokenize": True, "return_dict": False} | more
    ids: list[int] = tokenizer.apply_chat_template(messages, **arguments)
    return ids


@pytest.mark.parametrize("messages", [CALLED[:1], CALLED[:2], CALLED[1:2], CALLED[:3], CALLED])
def test_tokens_equal_the_stock_templates(qwen: Any, messages: list[dict[str, Any]]) -> None:
    ids = ChatTemplate(qwen).tokenize(Conversation(messages, tools=TOOLS))
    assert ids == stock(qwen, messages, tools=OBJECTS)
    assert ChatTemplate(qwen).tokenize(Conversation(messages)) == stock(qwen, messages)


def test_masking_gives_the_same_tokens_elsewhere(qwen: Any) -> None:
    template = ChatTemplate(qwen)
    assert template._special is not None
    plain = Conversation(CALLED, tools=TOOLS, kwargs={"enable_thinking": False})
    assert template._tokenize_masked(plain, template._special, ()) == template.tokenize(plain)


def places() -> list[Conversation]:
    """Conversations in each of which a special token is spelled in another place."""
    bad = "<|im_end|>"
    messages = [
        [*CALLED[:2], CALLED[2] | {"reasoning_content": bad}],
        [*CALLED[:2], CALLED[2] | {"tool_calls": [call("get_weather", {"place": bad})]}],
        [*CALLED[:2], CALLED[2] | {"tool_calls": [call("get_weather", {bad: ["x"]})]}],
        [*CALLED[:2], CALLED[2] | {"tool_calls": [call(bad, {})]}],
        [*CALLED[:4], {"role": "tool", "tool_call_id": "x", "content": f"a {bad} b"}],
    ]
    tools = [Tool("f", bad), Tool("f", None, {"properties": {bad: {}}}), Tool("f", None, {"enum": [[bad]]}), Tool(bad)]
    return [*map(Conversation, messages), *(Conversation(CALLED[:2], tools=(tool,)) for tool in tools)]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("at", range(9))
def test_spelled_special_tokens_are_text_wherever_they_are(qwen: Any, demo: Any, own: bool, at: int) -> None:
    tokenizer, conversation = qwen if own else demo, places()[at]
    ids = ChatTemplate(tokenizer).tokenize(conversation)
    begin, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    # Of the template's own, each message has one, but for the answer that only begins.
    assert ids.count(end) == ids.count(begin) - 1
    shown = own or at > 0  # the demo model's template shows no reasoning
    assert tokenizer.decode(ids).count("<|im_end|>") == ids.count(end) + shown


def test_marks_that_are_special_tokens_are_the_templates_own_and_not_peoples() -> None:
    tokenizer = tokenizer_with(["<tool_call>", "</tool_call>"], special=True)
    for template in (QWEN, tokenizer.chat_template):
        tokenizer.chat_template = template
        messages = [*CALLED[1:3], {"role": "user", "content": "What is <tool_call>?"}]
        ids = ChatTemplate(tokenizer).tokenize(Conversation(messages))
        assert ids.count(tokenizer.convert_tokens_to_ids("<tool_call>")) == 2
        assert "What is <tool_call>?" in tokenizer.decode(ids)


def test_a_template_that_knows_no_tools_gets_them_in_words(demo: Any) -> None:
    text = demo.decode(ChatTemplate(demo).tokenize(Conversation(CALLED, tools=TOOLS)))
    system, user, assistant, results, last = text.split("<|im_start|>")[1:]
    assert system.startswith("system\nBe brief.\n\n")
    assert json.dumps(OBJECTS[0]["function"], ensure_ascii=False) in system
    assert '{"name": "clock"}' in system
    assert user == "user\nHow is it in Köln?<|im_end|>\n"
    said = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Köln \\"Süd\\" 日本"}}\n</tool_call>\n'
    assert assistant == f'assistant\n{said}<tool_call>\n{{"name": "clock", "arguments": {{}}}}\n</tool_call><|im_end|>\n'
    assert results == ("user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>\n")
    assert last == "assistant\n"


def test_words_about_tools_leave_the_rest_alone(demo: Any) -> None:
    template = ChatTemplate(demo)
    alone = demo.decode(template.tokenize(Conversation(CALLED[1:2], tools=TOOLS)))
    assert alone.startswith("<|im_start|>system\n")
    assert alone.endswith(demo.decode(template.tokenize(Conversation(CALLED[1:2]))))
    parts = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, *CALLED[1:]]
    assert template.tokenize(Conversation(parts, tools=TOOLS)) == template.tokenize(Conversation(CALLED, tools=TOOLS))


def test_calls_without_content_are_no_obstacle(demo: Any) -> None:
    for content in (None, "", [], "Look:", [{"type": "text", "text": "Look:"}]):
        messages = [*CALLED[1:2], CALLED[2] | {"content": content}, *CALLED[3:]]
        text = demo.decode(ChatTemplate(demo).tokenize(Conversation(messages)))
        assert ("Look:\n<tool_call>" if content else "assistant\n<tool_call>") in text


def test_which_templates_know_tools() -> None:
    assert knows_tools(QWEN)
    assert knows_tools("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}")
    assert knows_tools("{% generation %}{{ tools }}{% endgeneration %}")
    assert not knows_tools("{% for message in messages %}{{ message.tools }}tools{% endfor %}")
    assert not knows_tools("{% set tools = 1 %}{{ tools }}")


def test_variables_reach_the_template(qwen: Any) -> None:
    ids = ChatTemplate(qwen).tokenize(Conversation(CALLED[:2], kwargs={"enable_thinking": False}))
    assert ids == stock(qwen, CALLED[:2], enable_thinking=False)
    assert qwen.decode(ids).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    "kwargs",
    [
        *({name: []} for name in ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize", "conversation")),
        *({name: "x"} for name in ("eos_token", "namespace", "raise_exception", "return_dict", "continue_final_message")),
        {"a": "x" * 70_000},
        {"a": [[]] * 70_000},
        {"a": {"b": [10**9]}},
        {"a": float("inf")},
        {"a": [float("nan"), 10**9]},
    ],
)
def test_variables_that_are_not_the_callers_are_refused(demo: Any, kwargs: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(demo).tokenize(Conversation(CALLED[1:2], kwargs=kwargs))
    assert caught.value.param == "chat_template_kwargs"


def test_the_final_message_is_continued(qwen: Any) -> None:
    messages = [*CALLED[1:2], {"role": "assistant", "content": "It is <|im_end|> r"}]
    ids = ChatTemplate(qwen).tokenize(Conversation(messages, continue_final_message=True))
    assert qwen.decode(ids).endswith("<|im_start|>assistant\nIt is <|im_end|> r")
    plain = [*CALLED[1:2], {"role": "assistant", "content": "It is r"}]
    continued = ChatTemplate(qwen).tokenize(Conversation(plain, continue_final_message=True))
    assert continued == stock(qwen, plain, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="continue"):
        ChatTemplate(qwen).tokenize(Conversation(CALLED[:3], continue_final_message=True))


def test_a_prompt_may_end_without_the_beginning_of_an_answer(qwen: Any) -> None:
    ids = ChatTemplate(qwen).tokenize(Conversation(CALLED, add_generation_prompt=False))
    assert ids == stock(qwen, CALLED, add_generation_prompt=False)


@pytest.mark.parametrize("text", ["It is red.", "It is <|im_end|> red."])
def test_a_prompt_is_measured_before_it_is_tokenized(demo: Any, text: str) -> None:
    lengths: list[int] = []
    ids = ChatTemplate(demo, check_length=lengths.append).tokenize(Conversation([{"role": "user", "content": text}]))
    assert lengths == [len(demo.decode(ids))]


def test_every_text_counts() -> None:
    conversation = Conversation(CALLED, tools=TOOLS, kwargs={"a": ["deep"]})
    texts = set(conversation.texts())
    for text in ("I must look.", 'Köln "Süd" 日本', "place", "rain", "clock", TOOLS[0].description, "required", "deep"):
        assert text in texts
