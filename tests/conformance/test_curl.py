"""What is on the wire, as curl shows it byte by byte."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from tests.conformance.questions import ANSWER, HELLO, PLAIN, about


def curl(url: str, body: dict[str, Any], *options: str) -> tuple[str, dict[str, str], bytes]:
    """The status line, the headers and the body of a POST."""
    done = subprocess.run(
        [
            *("curl", "-sS", "-N", "-i", "--noproxy", "*", "--max-time", "60", *options),
            *("-H", "content-type: application/json", "--data-binary", "@-", url),
        ],
        input=json.dumps(body).encode(),
        capture_output=True,
        check=True,
    )
    head, _, rest = done.stdout.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}, rest


def test_a_stream_is_framed_exactly(base_url: str) -> None:
    status, headers, body = curl(f"{base_url}/chat/completions", {**PLAIN, "messages": about(), "stream": True})
    assert status == "HTTP/1.1 200 OK"
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"
    assert "content-length" not in headers
    # Nothing but events, each one line and an empty one; the last is the end.
    assert re.fullmatch(rb"(data: \{[^\n]*\}\n\n)+data: \[DONE\]\n\n", body)
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in body.split(b"\n\n")[:-2]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == ANSWER
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["delta"] == {}


def test_events_come_one_by_one(base_url: str) -> None:
    """No buffer holds them back: each is a chunk of its own, as ``curl --raw`` shows them."""
    _, _, raw = curl(f"{base_url}/chat/completions", {**PLAIN, "messages": about(), "stream": True}, "--raw")
    chunks = []
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        chunks.append(raw[: int(size, 16)])
        raw = raw[int(size, 16) + 2 :]
    assert chunks.pop() == b""
    assert len(chunks) > len(ANSWER.split())
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)


def test_a_whole_answer_is_json_of_a_known_length(base_url: str) -> None:
    status, headers, body = curl(f"{base_url}/chat/completions", {**PLAIN, "messages": HELLO})
    assert status == "HTTP/1.1 200 OK"
    assert headers["content-type"] == "application/json"
    assert int(headers["content-length"]) == len(body)
    choice = json.loads(body)["choices"][0]
    assert {"index", "message", "finish_reason", "logprobs"} <= set(choice)
    assert choice["message"]["role"] == "assistant"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_is_a_status_for_streams_too(base_url: str, stream: bool) -> None:
    body = {**PLAIN, "messages": about("http://127.0.0.1:9/none.png"), "stream": stream}
    status, headers, answer = curl(f"{base_url}/chat/completions", body)
    assert status == "HTTP/1.1 400 Bad Request"
    assert headers["content-type"] == "application/json"
    assert json.loads(answer)["error"]["code"] == "invalid_media"


def test_a_large_body_is_taken_without_being_asked_twice(base_url: str) -> None:
    """curl asks for leave (``Expect: 100-continue``) before it sends a large body."""
    body = {**PLAIN, "messages": HELLO, "max_tokens": 1, "metadata": {"pad": "x" * 2_000_000}}
    status, _, rest = curl(f"{base_url}/chat/completions", body, "-H", "Expect: 100-continue")
    assert status == "HTTP/1.1 100 Continue"
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
