"""A picture that comes again crosses no wire, many that come at once are asked for once, and nobody gets another's."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.scenes import POSITIONS, Scene, Thing, describe, png
from tests.chaos.fleet import Fleet, fleet, metrics
from tests.chats import Undivided, user
from tests.processes import wait_for

TEXT = "Describe the picture."
numbers = count()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    options = {"faults_enabled": True, "allow_private_urls": True}
    with fleet(tmp_path_factory.mktemp("caches"), encoders=2, encoder=options, cached=True) as running:
        yield running


@pytest.fixture(autouse=True)
def cleared(services: Fleet) -> Iterator[None]:
    yield
    services.set_faults()


def scene(number: int) -> Scene:
    """One thing in a place of its own, for numbers below 9."""
    return Scene((Thing(number % 8, number % 4, number % len(POSITIONS)),))


def picture(number: int = 0) -> bytes:
    """A picture of a scene that was not there before."""
    return png(scene(number), seed=1000 + next(numbers))


def ask(services: Fleet, body: dict[str, Any], **headers: str) -> httpx.Response:
    url = f"{services.language.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=30, trust_env=False)


def said(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def crossed(services: Fleet) -> dict[str, float]:
    """Everything that is counted of what goes between the services, besides signs of life."""
    own = ("epd_messages_total", "epd_late_messages_total", "epd_attempts_total", "epd_failover_total")
    found = {name: value for name, value in metrics(services.language).items() if name.startswith(own)}
    for encoder in services.encoders:
        theirs = metrics(encoder)
        calls = [value for name, value in theirs.items() if name.startswith("epd_requests_total{") and "/encode" in name]
        found[f"{encoder.url} calls"] = sum(calls)
        found[f"{encoder.url} items"] = theirs["epd_encoder_batch_items_sum"]
    return found


def lookups(services: Fleet, outcome: str) -> float:
    return metrics(services.language).get(f'epd_cache_lookups_total{{outcome="{outcome}"}}', 0)


def computed(services: Fleet) -> float:
    """Pictures that towers have computed."""
    return sum(metrics(encoder)["epd_encoder_batch_items_sum"] for encoder in services.encoders)


def test_a_repeat_crosses_no_wire(services: Fleet, demo_model: Path) -> None:
    shown = [picture(1), picture(2)]
    body = user(*shown, "Describe the second picture.", max_tokens=16, return_token_ids=True)
    first = ask(services, body)
    before, hits = crossed(services), lookups(services, "hit")
    again, other = ask(services, body), ask(services, user(*reversed(shown), "Describe the first picture.", max_tokens=16))
    streamed = ask(services, body | {"stream": True})
    assert crossed(services) == before
    assert lookups(services, "hit") == hits + 6
    expected = Undivided(demo_model).answer([*shown, "Describe the second picture."], 16)
    for whole in (first, again):
        said(whole)
        tokens = whole.json()["prompt_token_ids"], whole.json()["choices"][0]["token_ids"]
        assert tokens == expected
    assert said(other) == said(first) == describe(scene(2))
    assert streamed.text.endswith("data: [DONE]\n\n")


def test_only_what_is_new_is_asked_for(services: Fleet) -> None:
    known, new = picture(3), picture(4)
    ask(services, user(known, TEXT))
    before = computed(services)
    assert said(ask(services, user(known, new, "Describe the second picture."))) == describe(scene(4))
    assert computed(services) == before + 1


@contextmanager
def site(pictures: list[bytes]) -> Iterator[tuple[str, list[str]]]:
    """A site whose one picture is another each time; its URL, and what was fetched."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fetched.append(self.path)
            data = pictures.pop(0)
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/picture.png", fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_url_is_asked_for_each_time(services: Fleet) -> None:
    """What is behind it may be another picture by now."""
    shown = [picture(1), picture(2)]
    with site(shown) as (url, fetched):
        body = user(TEXT)
        body["messages"][0]["content"].insert(0, {"type": "image_url", "image_url": {"url": url}})
        assert said(ask(services, body)) == describe(scene(1))
        assert said(ask(services, body)) == describe(scene(2))
        # Unless its caller says what it is.
        shown[:] = [picture(3), picture(4)]
        named = body | {"mm_hashes": ["the-third"]}
        assert said(ask(services, named)) == said(ask(services, named)) == describe(scene(3))
        assert len(fetched) == 3


def test_a_hash_means_something_for_its_caller_only(services: Fleet) -> None:
    """Equal hashes of one caller stand for equal pictures, since it says so; another's do not."""
    mine, theirs = {"authorization": "Bearer mine"}, {"authorization": "Bearer theirs"}
    name = f"picture-{next(numbers)}"

    def shown(number: int) -> dict[str, Any]:
        return user(picture(number), TEXT, mm_hashes=[name])

    assert said(ask(services, shown(1), **mine)) == describe(scene(1))
    assert said(ask(services, shown(2), **theirs)) == describe(scene(2))
    assert said(ask(services, shown(3))) == describe(scene(3))
    before = crossed(services)
    assert said(ask(services, shown(4), **mine)) == describe(scene(1))
    assert said(ask(services, shown(4), **theirs)) == describe(scene(2))
    assert said(ask(services, shown(4))) == describe(scene(3))
    assert crossed(services) == before
    # Nor does it mean anything for what it was sent with.
    known = picture(5)
    assert said(ask(services, user(known, TEXT, mm_hashes=[name]), **mine)) == describe(scene(1))
    assert said(ask(services, user(known, TEXT), **mine)) == describe(scene(5))
    assert said(ask(services, user(known, TEXT, mm_hashes=[None]), **mine)) == describe(scene(5))


@pytest.mark.parametrize(
    ("hashes", "param", "why"),
    [
        (["a"], "mm_hashes", "1 entries, but the request has 2 media items"),
        ([], "mm_hashes", "0 entries"),
        (["a", "b", "c"], "mm_hashes", "3 entries"),
        (["a", ""], "mm_hashes.1", "1 to 128"),
        (["a b", None], "mm_hashes.0", "1 to 128"),
        ([None, "x" * 129], "mm_hashes.1", "1 to 128"),
        ([None, 7], "mm_hashes.1", "string"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_malformed_hashes_are_refused(services: Fleet, hashes: list[Any], param: str, why: str, stream: bool) -> None:
    before = crossed(services)
    response = ask(services, user(picture(), picture(), TEXT, mm_hashes=hashes, stream=stream))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_request", param)
    assert why in error["message"]
    assert crossed(services) == before


async def at_once(services: Fleet, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    async with asked(services, bodies) as tasks:
        return await asyncio.gather(*tasks)


@asynccontextmanager
async def asked(services: Fleet, bodies: list[dict[str, Any]]) -> AsyncIterator[list[asyncio.Task[httpx.Response]]]:
    """Requests that are under way, each on a connection of its own."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:
        url = f"{services.language.url}/v1/chat/completions"
        yield [asyncio.create_task(client.post(url, json=body)) for body in bodies]


async def until(condition: Any) -> None:
    await asyncio.to_thread(wait_for, condition, 20, "the condition")


def test_64_equal_pictures_at_once_are_computed_once(services: Fleet) -> None:
    """Whichever encoder they would go to."""
    body = user(picture(6), TEXT)
    before = computed(services)
    answers = asyncio.run(at_once(services, [body] * 64))
    assert {said(answer) for answer in answers} == {describe(scene(6))}
    assert computed(services) == before + 1


def test_64_equal_broken_pictures_are_found_broken_once(services: Fleet) -> None:
    broken = picture()[:-100] + bytes(random.Random(next(numbers)).randbytes(50))
    services.set_faults({"kind": "delay", "at": "fetch", "seconds": 0.5})
    before = sum(value for name, value in crossed(services).items() if name.endswith("calls"))
    answers = asyncio.run(at_once(services, [user("What is it?", broken), *[user(broken, TEXT)] * 63]))
    assert {answer.status_code for answer in answers} == {400}
    errors = [answer.json()["error"] for answer in answers]
    assert {error["code"] for error in errors} == {"invalid_media"}
    assert [error["param"] for error in errors] == [f"messages.0.content.{at}.image_url" for at in [1] + [0] * 63]
    assert sum(value for name, value in crossed(services).items() if name.endswith("calls")) == before + 1


def test_a_caller_that_hangs_up_takes_nobody_along(services: Fleet) -> None:
    shown = picture(7)
    services.set_faults({"kind": "delay", "at": "fetch", "seconds": 1.0})
    before, joined = computed(services), lookups(services, "joined")

    async def scenario() -> list[httpx.Response]:
        async with asked(services, [user(shown, TEXT)]) as [leader]:
            await until(lambda: sum(metrics(encoder)["epd_encoder_items_in_work"] for encoder in services.encoders) == 1)
            async with asked(services, [user(shown, TEXT)] * 8) as followers:
                await until(lambda: lookups(services, "joined") == joined + 8)
                assert not leader.done()
                leader.cancel()
                return await asyncio.gather(*followers)

    answers = asyncio.run(scenario())
    assert {said(answer) for answer in answers} == {describe(scene(7))}
    assert computed(services) == before + 1
    wait_for(lambda: metrics(services.language)["epd_waits"] == 0, 5, "no waits")


def test_known_pictures_are_answered_while_no_encoder_is_there(tmp_path: Path) -> None:
    with fleet(tmp_path, cached=True) as services:
        known = picture(1)
        first = said(ask(services, user(known, TEXT)))
        services.encoders[0].kill()
        wait_for(lambda: all(view["state"] != "ready" for view in services.states().values()), 5, "its loss")
        for stream in (False, True):
            assert ask(services, user(known, TEXT, stream=stream)).status_code == 200
            for new in ([picture()], [known, picture()]):
                refused = ask(services, user(*new, TEXT, stream=stream))
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "encoder_unavailable")
        assert said(ask(services, user(known, TEXT))) == first == describe(scene(1))
        services.encoders[0].start(wait=False)
        services.until_ready()
        assert said(ask(services, user(picture(2), TEXT))) == describe(scene(2))


def test_known_pictures_are_answered_while_as_many_wait_as_may(tmp_path: Path) -> None:
    options = {"faults_enabled": True}
    with fleet(tmp_path, encoder=options, language={"max_queue": 16}, cached=True) as services:
        known = user(picture(1), TEXT)
        assert said(ask(services, known)) == describe(scene(1))
        services.set_faults({"kind": "delay", "at": "fetch", "seconds": 60})

        async def scenario() -> tuple[httpx.Response, httpx.Response]:
            async with asked(services, [user(picture(number), TEXT) for number in range(8)]) as waiting:
                await until(lambda: metrics(services.language)["epd_waits"] == 8)
                answers = [await asyncio.to_thread(ask, services, body) for body in (known, user(picture(), TEXT))]
                for task in waiting:
                    task.cancel()
                return answers[0], answers[1]

        answered, refused = asyncio.run(scenario())
        assert said(answered) == describe(scene(1))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "encoder_overloaded")
        assert "8 requests wait for embeddings" in refused.json()["error"]["message"]


def test_the_memory_of_the_cache_is_bounded(tmp_path: Path) -> None:
    room = 2**16
    with fleet(tmp_path, language={"embedding_cache_bytes": room}) as services:
        for number in range(20):
            assert ask(services, user(picture(number % 8), TEXT, max_tokens=1)).status_code == 200
        counted = metrics(services.language)
        assert 0 < counted["epd_cache_bytes"] <= room
        assert counted["epd_cache_items"] + counted["epd_cache_evictions_total"] == 20
        assert counted["epd_cache_evictions_total"] > 0
