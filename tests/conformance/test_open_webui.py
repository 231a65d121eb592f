"""What Open WebUI sends: it looks for models, then streams with fields of its own beside OpenAI's."""

from __future__ import annotations

import json

from tests.chats import MODEL
from tests.conformance.questions import ANSWER, about
from tests.conftest import Pair

HEADERS = {"authorization": "Bearer none", "x-openwebui-user-id": "8f1c", "x-openwebui-user-name": "Ann"}


def test_models_are_found_as_it_looks_for_them(pair: Pair) -> None:
    answer = pair.client.get("/v1/models", headers=HEADERS).json()
    assert answer["object"] == "list"
    assert [model["id"] for model in answer["data"]] == [MODEL]
    assert {"id", "object", "created", "owned_by"} <= set(answer["data"][0])


def test_a_chat_with_its_own_fields_is_streamed_with_usage(pair: Pair) -> None:
    body = {
        "model": MODEL,
        "messages": about(),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": None,
        "stop": None,
        "session_id": "p7Vb",
        "chat_id": "0d2c6d1e",
        "id": "f3a8",
        "features": {"image_generation": False, "code_interpreter": False, "web_search": False},
        "variables": {"{{USER_NAME}}": "Ann"},
        "metadata": {"user_id": "8f1c", "chat_id": "0d2c6d1e", "tool_ids": None, "files": []},
        "model_item": {"id": MODEL, "object": "model"},
        "background_tasks": {"title_generation": True},
        "tool_ids": [],
        "params": {},
    }
    with pair.client.stream("POST", "/v1/chat/completions", json=body, headers=HEADERS) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ANSWER
    assert last["usage"]["total_tokens"] > 0


def test_a_title_is_generated_whole(pair: Pair) -> None:
    """Its tasks in the background ask for whole answers, with a limit by OpenAI's newer name."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title."}],
        "stream": False,
        "max_completion_tokens": 12,
        "metadata": {"task": "title_generation", "task_body": {"model": MODEL}},
    }
    answer = pair.client.post("/v1/chat/completions", json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] is not None


def test_an_error_is_shown_by_its_message(pair: Pair) -> None:
    """It takes ``error.message`` of what is no success, also where a stream was asked for."""
    body = {"model": MODEL, "messages": about("data:image/png;base64,AAAA"), "stream": True}
    answer = pair.client.post("/v1/chat/completions", json=body, headers=HEADERS)
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"]["message"], str)
