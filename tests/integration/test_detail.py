"""``detail`` of pictures, served by the real pair: each as transformers' processor has it, and never mixed up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.chats import Undivided, data_url
from tests.families import make
from tests.families.media import picture
from tests.processes import Service
from tests.unit.test_detail import allow

TOKENS = 8
LARGE, SMALL = picture(1, 900, 700), picture(2, 60, 40)
SIZE = {"shortest_edge": 1024, "longest_edge": 640 * 640}
LOW = {"shortest_edge": 1024, "longest_edge": 512 * 512}


@dataclass(frozen=True)
class Served:
    """The pair, caches and all, and the undivided model by the detail that its processor is told."""

    client: httpx.Client
    undivided: dict[str, Undivided]

    def ask(self, image: bytes, detail: str, **fields: Any) -> tuple[list[int], list[int]]:
        """Token ids of the expanded prompt and of the answer."""
        shown = {"type": "image_url", "image_url": {"url": data_url(image), "detail": detail}}
        messages = [{"role": "user", "content": [shown, {"type": "text", "text": "What is it?"}]}]
        asked = {"messages": messages, "temperature": 0, "max_tokens": TOKENS, "return_token_ids": True, **fields}
        answer = self.client.post("/v1/chat/completions", json=asked)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        return body["prompt_token_ids"], body["choices"][0]["token_ids"]

    def wanted(self, image: bytes, detail: str) -> tuple[list[int], list[int]]:
        return self.undivided[detail].answer([image, "What is it?"], TOKENS)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("detail")
    model = allow(make("qwen3_vl", folder / "model"), {"size": SIZE})
    undivided = {detail: Undivided(model) for detail in ("high", "low")}
    undivided["low"].processor.image_processor.size = LOW
    with (
        Service("encoder", folder, model=model).start(wait=False) as encoder,
        Service("language", folder, model=model, encoders=encoder.url).start(wait=False) as language,
        httpx.Client(base_url=language.url, timeout=60, trust_env=False) as client,
    ):
        encoder.wait_until_ready()
        language.wait_until_ready(encoders=1)
        yield Served(client, undivided)


def test_answers_are_those_of_the_undivided_model_with_the_same_limits(served: Served) -> None:
    high, low = served.wanted(LARGE, "high"), served.wanted(LARGE, "low")
    assert len(low[0]) < len(high[0])
    for detail, right in (("low", low), ("high", high), ("auto", high), ("low", low)):
        assert served.ask(LARGE, detail) == right, detail


def test_a_small_picture_is_the_same_in_any_detail(served: Served) -> None:
    right = served.wanted(SMALL, "high")
    assert served.wanted(SMALL, "low") == right
    assert {detail: served.ask(SMALL, detail) for detail in ("low", "high", "auto")} == dict.fromkeys(
        ("low", "high", "auto"), right
    )


def test_one_name_stands_for_a_picture_in_each_detail(served: Served) -> None:
    other = picture(3, 900, 700)
    low, high = served.ask(other, "low", mm_hashes=["name"]), served.ask(other, "high", mm_hashes=["name"])
    assert (low, high) == (served.wanted(other, "low"), served.wanted(other, "high"))
    # By its name it is known without its bytes, in either detail.
    assert served.ask(SMALL, "low", mm_hashes=["name"]) == low
    assert served.ask(SMALL, "high", mm_hashes=["name"]) == high


def test_a_detail_that_there_is_not_is_refused(served: Served) -> None:
    shown = {"type": "image_url", "image_url": {"url": data_url(SMALL), "detail": "blurred"}}
    answer = served.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [shown]}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("messages.0.content")
