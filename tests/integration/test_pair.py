"""Two processes answer as the undivided model does, token for token, through every door of the API."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from examples.scenes import TALK, png, random_exam, random_scene
from shared.checkpoint import fingerprint
from tests.chats import MODEL, Undivided, data_url, exam_parts, user
from tests.conftest import Pair

SCENES = 200
EXAMS = 500


@pytest.fixture(scope="module")
def undivided(demo_model: Path) -> Undivided:
    return Undivided(demo_model)


@pytest.fixture(scope="module")
def sdk(pair: Pair) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{pair.language.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def answer(pair: Pair, body: dict[str, Any]) -> dict[str, Any]:
    response = pair.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    parsed: dict[str, Any] = response.json()
    return parsed


def content(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which must be framed exactly and end with [DONE]."""
    blocks = text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_200_scenes_give_the_tokens_of_the_undivided_model(pair: Pair, undivided: Undivided) -> None:
    rng = random.Random(2026)
    exams = [exam_parts(random_exam(rng), seed) for seed in range(SCENES)]
    with ThreadPoolExecutor(4) as threads:
        bodies = list(threads.map(lambda parts: answer(pair, user(*parts, max_tokens=64, return_token_ids=True)), exams))
    for parts, body in zip(exams, bodies, strict=True):
        prompt, tokens = undivided.answer(parts)
        assert body["prompt_token_ids"] == prompt
        assert body["choices"][0]["token_ids"] == tokens
        assert body["usage"] == {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens),
            "total_tokens": len(prompt) + len(tokens),
            "prompt_tokens_details": body["usage"]["prompt_tokens_details"],
            "completion_tokens_details": {"reasoning_tokens": 0},
        }


@pytest.mark.parametrize("words", [*TALK, "Describe the picture.", "ünïcödé 🙂", "x " * 300])
def test_text_gives_the_tokens_of_the_undivided_model(pair: Pair, undivided: Undivided, words: str) -> None:
    body = answer(pair, user(words, max_tokens=32, return_token_ids=True))
    prompt, tokens = undivided.answer([words], 32)
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == (prompt, tokens)


def test_500_held_out_exams_are_answered_right(pair: Pair, record_property: Any, capsys: Any) -> None:
    rng = random.Random("held out")
    exams = [random_exam(rng) for _ in range(EXAMS)]
    with ThreadPoolExecutor(8) as threads:
        asked = threads.map(lambda pair_: answer(pair, user(*exam_parts(pair_[1], pair_[0]))), enumerate(exams))
        right = sum(content(body) == exam.question.answer for body, exam in zip(asked, exams, strict=True))
    record_property("exact_match", right / EXAMS)
    with capsys.disabled():
        print(f"\nexact match on {EXAMS} held-out exams: {right / EXAMS:.1%}")
    assert right / EXAMS >= 0.95


def test_a_stream_says_the_same_as_the_whole(pair: Pair) -> None:
    scene = random_scene(random.Random(4))
    body = user(png(scene), "Describe the picture.", return_token_ids=True)
    whole = answer(pair, body)
    response = pair.client.post("/v1/chat/completions", json=body | {"stream": True, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = events(response.text)
    assert len({part["id"] for part in parts}) == 1
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts[:-1]) == content(whole)
    assert parts[-2]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
    assert parts[-1]["choices"] == []
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert parts[-1]["usage"][count] == whole["usage"][count]
    assert all(part["usage"] is None for part in parts[:-1])
    tokens = [token for part in parts[:-1] for token in part["choices"][0].get("token_ids", [])]
    assert tokens == whole["choices"][0]["token_ids"]


def test_the_official_client_whole_and_streamed(sdk: openai.OpenAI, pair: Pair) -> None:
    body = user(png(random_scene(random.Random(5))), "What is in the picture?")
    whole = sdk.chat.completions.create(**body)
    assert whole.choices[0].message.content == content(answer(pair, body))
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(sdk.chat.completions.create(**body, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [model.id for model in sdk.models.list()] == [MODEL]


def test_the_official_client_gets_typed_errors(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(**user(b"not a picture", "Describe the picture."))
    assert caught.value.code == "invalid_media"


async def test_the_official_asynchronous_client(pair: Pair) -> None:
    async with openai.AsyncOpenAI(base_url=f"{pair.language.url}/v1", api_key="none") as sdk:
        stream: AsyncIterator[Any] = await sdk.chat.completions.create(**user("Hello!"), stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == TALK["Hello!"]


def test_conversations_of_several_turns_with_a_system_prompt(pair: Pair) -> None:
    body = user(png(random_scene(random.Random(6))), "Describe the picture.")
    first = content(answer(pair, body))
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        *body["messages"],
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Thank you."},
    ]
    assert content(answer(pair, body | {"messages": messages})) == TALK["Thank you."]


def test_stop_strings_token_limits_and_seeds(pair: Pair) -> None:
    hello = user("Hello!")
    text = TALK["Hello!"]
    cut = answer(pair, hello | {"stop": ["picture", "zebra"]})
    assert (content(cut), cut["choices"][0]["finish_reason"]) == (text.split("picture")[0], "stop")
    short = answer(pair, hello | {"max_completion_tokens": 3})
    assert (short["usage"]["completion_tokens"], short["choices"][0]["finish_reason"]) == (3, "length")
    wild = user("Zebras?", temperature=2, seed=7, max_tokens=24, ignore_eos=True)
    assert content(answer(pair, wild)) == content(answer(pair, wild))
    others = {content(answer(pair, wild | {"seed": seed})) for seed in range(4)}
    assert len(others) > 1
    nearly_greedy = answer(pair, hello | {"temperature": 1, "top_p": 1e-6})
    assert content(nearly_greedy) == text


def test_several_answers_whole_and_streamed(pair: Pair) -> None:
    wild = user("Zebras?", n=3, temperature=2, seed=7, max_tokens=24, ignore_eos=True)
    choices = answer(pair, wild)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in choices]
    assert len(set(texts)) == 3
    assert content(answer(pair, wild | {"n": 1, "seed": 8})) == texts[1]
    streamed = pair.client.post("/v1/chat/completions", json=wild | {"stream": True})
    joined = ["", "", ""]
    reasons: list[str] = []
    for part in events(streamed.text):
        for choice in part["choices"]:
            joined[choice["index"]] += choice["delta"].get("content", "")
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert joined == texts
    assert len(reasons) == 3


def test_logprobs_through_the_official_client(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(**user("Hello!"), logprobs=True, top_logprobs=2)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert whole.usage is not None
    assert len(logprobs.content) == whole.usage.completion_tokens
    text = "".join(token.token for token in logprobs.content).removesuffix("<|im_end|>")
    assert text == whole.choices[0].message.content
    for token in logprobs.content:
        assert [token.top_logprobs[0].token, token.top_logprobs[0].logprob] == [token.token, token.logprob]
        assert bytes(token.bytes or []).decode() == token.token
        assert token.logprob <= 0


def test_a_second_turn_reuses_the_first(pair: Pair) -> None:
    body = user(png(random_scene(random.Random(77)), seed=5), "Describe the picture. " * 4)
    first = answer(pair, body)
    messages = [*body["messages"], {"role": "assistant", "content": content(first)}, {"role": "user", "content": "Thank you."}]
    second = answer(pair, body | {"messages": messages})["usage"]
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 16


def test_pictures_by_url_are_fetched_by_the_encoder(pair: Pair, tmp_path: Path) -> None:
    import functools
    import threading
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    picture = png(random_scene(random.Random(8)))
    (tmp_path / "scene.png").write_bytes(picture)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        body = user(picture, "Describe the picture.")
        expected = content(answer(pair, body))
        image = body["messages"][0]["content"][0]["image_url"]
        image["url"] = f"{url}/scene.png"
        assert content(answer(pair, body)) == expected
        image["url"] = f"{url}/missing.png"
        response = pair.client.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_media")
        assert "404" in response.json()["error"]["message"]
        assert response.json()["error"]["param"] == "messages.0.content.0.image_url"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_each_process_has_its_half_and_nothing_of_the_other(pair: Pair, demo_model: Path) -> None:
    encoder, language = (httpx.get(f"{service.url}/v1/info").json() for service in (pair.encoder, pair.language))
    assert encoder["parameters"].keys() == {"model.visual"}
    assert language["parameters"].keys() == {"model.language_model"}
    header = json.loads((demo_model / "model.safetensors").read_bytes()[8:].split(b"}}", 1)[0] + b"}}")
    header.pop("__metadata__", None)
    whole = sum(int(entry["data_offsets"][1] - entry["data_offsets"][0]) // 4 for entry in header.values())
    assert encoder["parameters_total"] + language["parameters_total"] == whole
    assert encoder["model_fingerprint"] == language["model_fingerprint"] == fingerprint(demo_model)


def test_the_openapi_documents_are_whole(pair: Pair) -> None:
    for service in (pair.encoder, pair.language):
        document = httpx.get(f"{service.url}/openapi.json", trust_env=False).json()
        for reference in re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)):
            place = document
            assert reference.startswith("#/")
            for key in reference[2:].split("/"):
                place = place[key]


def test_every_response_has_the_request_id(pair: Pair) -> None:
    given = pair.client.post("/v1/chat/completions", json=user("Hello!"), headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/nowhere"):
        assert pair.client.get(path).headers["x-request-id"].startswith("req-")
    odd = pair.client.get("/health", headers={"x-request-id": "a b\tc" * 40})
    assert odd.headers["x-request-id"].startswith("req-")


def test_metrics_count_by_code(pair: Pair) -> None:
    def count(code: str) -> float:
        name = f'epd_requests_total{{code="{code}",route="/v1/chat/completions"}} '
        lines = pair.client.get("/metrics").text.splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = count("ok"), count("invalid_media")
    answer(pair, user("Hello!"))
    pair.client.post("/v1/chat/completions", json=user(b"no picture", "What?"))
    assert (count("ok"), count("invalid_media")) == (before[0] + 1, before[1] + 1)


def test_the_encoder_takes_data_urls_by_itself(pair: Pair) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        call = {
            "request_id": "by-hand",
            "num_items": 1,
            "items": [{"index": 0, "url": data_url(png(random_scene(random.Random(9))))}],
            "reply_to": f"tcp://127.0.0.1:{port}",
            "timeout": 10,
        }
        response = httpx.post(f"{pair.encoder.url}/encode", json=call)
        assert response.status_code == 200, response.text
        assert socket.poll(5000)
        frames = socket.recv_multipart()
    header, item = json.loads(frames[0]), response.json()["items"][0]
    assert (header["request_id"], header["content_hash"]) == ("by-hand", item["content_hash"])
    assert item["num_tokens"] == header["num_tokens"] == 4
    assert [tensor["name"] for tensor in header["tensors"]] == ["embeds", "deepstack.0", "deepstack.1"]
    assert [len(frame) for frame in frames[1:]] == [4 * 128 * 4] * 3
