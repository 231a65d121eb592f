"""A client that hangs up, or whose time is over, takes its work along from wherever it is, and is counted."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.chaos.fleet import Fleet, fleet, metrics
from tests.chats import encoded, user
from tests.load import Case, ask_all, check, text_case
from tests.processes import wait_for

GONE = 'epd_requests_total{code="client_gone",route="/v1/chat/completions"}'


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    # One picture at a time in the tower, so that a queue builds up before it.
    options = {"faults_enabled": True, "max_batch_items": 1}
    with fleet(tmp_path_factory.mktemp("leaving"), encoder=options, language={"body_timeout": 1, "max_queue": 16}) as running:
        yield running


@pytest.fixture(autouse=True)
def cleared(services: Fleet) -> Iterator[None]:
    yield
    services.set_faults()


def in_work(services: Fleet) -> float:
    return metrics(services.encoders[0])["epd_encoder_items_in_work"]


def until_all_is_free(services: Fleet) -> None:
    """Both services hold nothing any more, soon."""
    wait_for(lambda: in_work(services) == 0, 3, "an idle encoder")
    free = metrics(services.encoders[0])
    assert free["epd_encoder_bytes_in_work"] == free["epd_encoder_queue_items"] == 0
    wait_for(lambda: metrics(services.language)["epd_waits"] == 0, 3, "no waits")
    assert [view["in_flight"] for view in services.states().values()] == [0]
    assert metrics(services.language)["epd_held_bytes"] == 0


async def leave_when(services: Fleet, bodies: list[bytes], moment: Any) -> None:
    """Sends requests, and hangs up on all of them when ``moment()`` is true."""
    async with httpx.AsyncClient(timeout=60, trust_env=False, limits=httpx.Limits(max_connections=None)) as client:
        url = f"{services.language.url}/v1/chat/completions"
        headers = {"content-type": "application/json"}
        asked = [asyncio.create_task(client.post(url, content=body, headers=headers)) for body in bodies]
        async with asyncio.timeout(20):
            while not await asyncio.to_thread(moment):
                await asyncio.sleep(0.01)
        assert not any(task.done() for task in asked)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize(("at", "stage"), [("fetch", "fetch"), ("hash", "decode"), ("publish", "publish")])
def test_at_each_stage_of_the_encoder(services: Fleet, doubles: list[Case], at: str, stage: str) -> None:
    cancelled = f'epd_encoder_cancelled_total{{stage="{stage}"}}'
    before = metrics(services.language).get(GONE, 0), metrics(services.encoders[0]).get(cancelled, 0)
    services.set_faults({"kind": "delay", "at": at, "seconds": 60})
    bodies = [case.body for case in doubles[:5]]
    computed = metrics(services.encoders[0])["epd_encoder_batch_items_sum"]

    def there() -> bool:
        found = metrics(services.encoders[0])
        passed = found["epd_encoder_batch_items_sum"] - computed
        return found["epd_encoder_items_in_work"] == 10 and passed == (10 if at == "publish" else 0)

    asyncio.run(leave_when(services, bodies, there))
    until_all_is_free(services)
    wait_for(lambda: metrics(services.language).get(GONE, 0) == before[0] + 5, 3, "counting of clients that left")
    assert metrics(services.encoders[0])[cancelled] == before[1] + 10


def test_in_the_queue_of_the_tower(services: Fleet) -> None:
    """Pictures pile up before the tower; when their clients leave, it computes for no one."""
    picture = encoded(Image.effect_noise((160, 160), 60).convert("RGB"), "PNG")
    bodies = [json.dumps(user(*[picture] * 30, f"{number}", max_tokens=4)).encode() for number in range(8)]
    asyncio.run(leave_when(services, bodies, lambda: metrics(services.encoders[0])["epd_encoder_queue_items"] >= 8))
    until_all_is_free(services)
    stages = metrics(services.encoders[0])
    assert sum(value for name, value in stages.items() if name.startswith('epd_encoder_cancelled_total{stage="queue"')) >= 8


def test_in_the_engine(services: Fleet) -> None:
    body = json.dumps(user("Hello!", max_tokens=2000, ignore_eos=True)).encode()
    asyncio.run(leave_when(services, [body] * 4, lambda: metrics(services.language)["epd_engine_running"] == 4))
    wait_for(lambda: metrics(services.language)["epd_engine_running"] == 0, 2, "release of the engine's places")
    assert metrics(services.language)["epd_engine_blocks_used"] == 0


def ask(services: Fleet, body: dict[str, Any], headers: dict[str, str]) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    url = f"{services.language.url}/v1/chat/completions"
    response = httpx.post(url, json=body, headers=headers, timeout=30, trust_env=False)
    return response, time.monotonic() - began


@pytest.mark.parametrize("at", ["fetch", "hash", "publish"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_the_work_on_both_sides(services: Fleet, at: str, stream: bool) -> None:
    services.set_faults({"kind": "delay", "at": at, "seconds": 60})
    picture = encoded(Image.new("RGB", (64, 64), "red"))
    response, seconds = ask(services, user(picture, "What is it?", stream=stream), {"x-request-timeout": "0.4"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "embedding_timeout")
    assert "0.4 s" in response.json()["error"]["message"]
    assert seconds < 1.4
    until_all_is_free(services)


def test_a_deadline_ends_an_answer_too(services: Fleet) -> None:
    long = user("Hello!", max_tokens=2000, ignore_eos=True)
    response, seconds = ask(services, long, {"x-request-timeout": "0.4"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_overloaded")
    assert response.headers["retry-after"]
    assert seconds < 1.4
    response, seconds = ask(services, long | {"stream": True}, {"x-request-timeout": "0.4"})
    # The first token was there: the stream says what happened, and ends without [DONE].
    assert response.status_code == 200
    events = [line for line in response.text.splitlines() if line]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "engine_overloaded"
    assert seconds < 1.4
    wait_for(lambda: metrics(services.language)["epd_engine_running"] == 0, 2, "release of the engine's places")


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", ""])
def test_a_timeout_that_is_none_is_refused(services: Fleet, value: str) -> None:
    response, _ = ask(services, user("Hello!"), {"x-request-timeout": value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-timeout")


def test_a_generous_timeout_changes_nothing(services: Fleet, singles: list[Case]) -> None:
    outcomes = asyncio.run(ask_all(services.language.url, singles[:5], headers={"x-request-timeout": "1e9"}))
    check(outcomes, 5, set())
    assert {outcome.status for outcome in outcomes} == {200}


@pytest.mark.parametrize("stream", [b"false", b"true"])
def test_a_body_that_does_not_come_is_not_waited_for(services: Fleet, stream: bytes) -> None:
    """And while many dawdle, the others are served."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", services.language.port), 10)) for _ in range(8)]
        for connection in slow:
            connection.sendall(head + b'{"stream": ' + stream)
        assert ask(services, user("Hello!"), {})[0].status_code == 200
        for connection in slow:
            answer = b""
            while b"}}" not in answer:
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 400")
            assert b"did not arrive within 1 s" in answer


def test_pictures_that_wait_leave_room_for_text(services: Fleet, singles: list[Case]) -> None:
    services.set_faults({"kind": "delay", "seconds": 60})

    async def crowd() -> None:
        outcomes = asyncio.create_task(ask_all(services.language.url, singles[:40], headers={"x-request-timeout": "1.5"}))
        async with asyncio.timeout(10):
            while await asyncio.to_thread(in_work, services) < 8:
                await asyncio.sleep(0.01)
        check(await ask_all(services.language.url, [text_case()] * 6), 6, set())
        found = await outcomes
        check(found, 40, {"embedding_timeout", "encoder_overloaded", "engine_overloaded"})
        assert {"embedding_timeout", "encoder_overloaded"} <= {outcome.code for outcome in found}

    asyncio.run(crowd())


def test_too_many_pictures_are_refused_as_such_however_busy_encoders_are(services: Fleet) -> None:
    picture = encoded(Image.new("RGB", (64, 64), "red"))
    response, _ = ask(services, user(*[picture] * 300, "?"), {})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert "300 pictures" in response.json()["error"]["message"]


def test_one_picture_is_not_kept_waiting_by_thirty(services: Fleet, singles: list[Case]) -> None:
    """Requests take turns at the encoder: a small one that comes last is answered before the large ones."""
    large = encoded(Image.effect_noise((700, 700), 60).convert("RGB"), "JPEG")
    crowd = [Case(json.dumps(user(*[large] * 30, "?", max_tokens=1)).encode(), "") for _ in range(4)]

    async def race() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        crowded = asyncio.create_task(ask_all(services.language.url, crowd))
        async with asyncio.timeout(20):
            while await asyncio.to_thread(in_work, services) < 100:
                await asyncio.sleep(0.01)
        began = loop.time()
        [alone] = await ask_all(services.language.url, singles[:1])
        assert (alone.status, alone.wrong) == (200, False)
        took = loop.time() - began
        await crowded
        return took, loop.time() - began

    took, all_of_it = asyncio.run(race())
    assert took < 0.5 * all_of_it
