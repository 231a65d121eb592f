"""Clients of a fleet on two nodes get what clients of a pair get, through Serve's proxy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.chats import user
from tests.fleet.deployed import Deployed
from tests.load import Case, ask_all, check, codes, text_case
from tests.processes import wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(900)]

LONG = user("Hello!", max_tokens=800, ignore_eos=True)


@pytest.fixture
def client(fleet: Deployed) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet.url, timeout=60, trust_env=False) as http:
        yield http


@pytest.fixture
def failing(fleet: Deployed) -> Iterator[list[str]]:
    """The encoders' addresses; what was done to them is undone."""
    urls = list(fleet.encoders())
    yield urls
    for url in urls:
        fleet.set_fault(url)


def test_texts_and_pictures_are_answered_right(fleet: Deployed, singles: list[Case]) -> None:
    outcomes = asyncio.run(ask_all(fleet.url, [*singles, text_case()], 4))
    check(outcomes, len(singles) + 1, set())
    assert codes(outcomes)["ok"] == len(singles) + 1


def test_both_encoders_are_replicas_of_serves_on_the_other_node_and_do_the_work(fleet: Deployed, singles: list[Case]) -> None:
    encoders = fleet.encoders()
    assert [replica.deployment for replica in encoders.values()] == ["encoders"] * 2
    [language] = fleet.languages()
    assert language.node not in {replica.node for replica in encoders.values()}
    check(asyncio.run(ask_all(fleet.url, singles, 4)), len(singles), set())
    for url in encoders:
        worked = httpx.get(f"{url}/metrics", timeout=10, trust_env=False).text
        assert "\nepd_encoder_batch_items_sum 0.0" not in worked


def test_the_official_client_streams(fleet: Deployed, singles: list[Case]) -> None:
    body = json.loads(singles[0].body)
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0) as sdk:
        chunks = list(sdk.chat.completions.create(**body, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == singles[0].answer
    assert len(chunks) > 3


def test_tokens_come_while_the_engine_makes_more(fleet: Deployed, client: httpx.Client) -> None:
    """And when the client leaves, the engine makes no more."""
    began = time.monotonic()
    assert client.post("/v1/chat/completions", json=LONG).status_code == 200
    whole = time.monotonic() - began
    with client.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        assert "error" not in json.loads(next(lines).removeprefix("data: "))
        assert fleet.gauges()["epd_engine_running"] == 1
    wait_for(lambda: fleet.gauges()["epd_engine_running"] == 0, whole / 2, "the end of its sequence")


def test_a_client_that_leaves_before_its_answer_takes_its_work_along(fleet: Deployed, client: httpx.Client) -> None:
    """Serve cancels the request, and tells it that its client is gone: it is counted as what the service sees first."""

    def left() -> float:
        found = fleet.gauges()
        names = (f'epd_requests_total{{code="{code}",route="/v1/chat/completions"}}' for code in ("client_gone", "cancelled"))
        return sum(found.get(name, 0) for name in names)

    before = left()
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=LONG, timeout=httpx.Timeout(30, read=0.3))
    wait_for(lambda: left() == before + 1, 20, "counting of the client that left")
    wait_for(lambda: fleet.gauges()["epd_engine_running"] == 0, 20, "the end of its sequence")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "demo_model"}, 400, "invalid_request"),
        (user("Hello!", temperature=-1), 400, "invalid_request"),
        (user(b"no picture", "What is it?"), 400, "invalid_media"),
        (user("Hello!") | {"model": "another"}, 404, "model_not_found"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_with_a_request_is_said_as_everywhere(
    client: httpx.Client, body: dict[str, object], status: int, code: str, stream: bool
) -> None:
    answer = client.post("/v1/chat/completions", json=body | {"stream": stream}, headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_all_encoders_is_a_503_with_its_code(
    fleet: Deployed, client: httpx.Client, failing: list[str], singles: list[Case], stream: bool
) -> None:
    for url in failing:
        fleet.set_fault(url, kind="error", status=500)
    answer = client.post("/v1/chat/completions", json=json.loads(singles[0].body) | {"stream": stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "encoder_failed")
    assert int(answer.headers["retry-after"]) >= 1
    assert client.post("/v1/chat/completions", json=user("Hello!")).status_code == 200


def test_the_list_of_encoders_is_that_of_the_replicas(fleet: Deployed) -> None:
    """Those that died before are there a while longer, as such."""
    states = fleet.states().values()
    ready = {view["url"]: (view["source"], view["reason"]) for view in states if view["state"] == "ready"}
    assert ready == dict.fromkeys(fleet.encoders(), ("registered", ""))
    assert len(ready) == 2
    assert {view["state"] for view in states} <= {"ready", "down"}
