"""A service in a replica begins and ends as one that is alone does: why it does not start is told, what is open is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message

from services.fleet.languages import Passage, Patience
from services.fleet.listener import Listener, acquainted, bound_to, url_of
from shared.errors import EncoderUnavailable
from shared.http import REQUEST_ID_HEADER, install
from shared.lifecycle import Drain, Refusal
from shared.telemetry import Metrics


class Parts:
    """An app with one slow route, and what happened to it."""

    def __init__(self, refuses: str | None = None) -> None:
        self.events: list[str] = []
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            if refuses is not None:
                raise Refusal(refuses)
            self.events.append("up")
            yield
            self.events.append("down")

        self.app = FastAPI(lifespan=lifespan)
        drain = Drain(20.0, lambda: EncoderUnavailable("It drains."))
        drain.on_begin(lambda: self.events.append("drains"))
        install(self.app, Metrics(), 1000, drain)

        @self.app.get("/slow")
        async def slow() -> str:
            self.asked.set()
            await self.go_on.wait()
            return "answered"


async def test_it_serves_on_its_port_and_ends_when_what_is_open_is_answered() -> None:
    parts = Parts()
    bound = bound_to("127.0.0.1")
    listener = Listener(parts.app, bound)
    await listener.start()
    async with httpx.AsyncClient(base_url=url_of("127.0.0.1", bound), trust_env=False, timeout=30) as client:
        open_request = asyncio.create_task(client.get("/slow"))
        await parts.asked.wait()
        assert (await listener.get("/health", 30)).json() == {"status": "ok"}
        ending = asyncio.create_task(listener.stop())
        async with asyncio.timeout(30):
            while "drains" not in parts.events:
                await asyncio.sleep(0.01)
        assert not ending.done()
        parts.go_on.set()
        assert (await open_request).json() == "answered"
        await ending
    assert parts.events == ["up", "drains", "down"]


async def test_why_a_service_does_not_start_is_told() -> None:
    listener = Listener(Parts(refuses="this family is not served").app, bound_to("127.0.0.1"))
    with pytest.raises(Refusal, match="this family is not served"):
        await listener.start()


async def test_of_two_replicas_with_one_port_the_second_does_not_count_as_up() -> None:
    one = bound_to("127.0.0.1")
    port = one.getsockname()[1]
    one.close()
    listeners = [Listener(Parts().app, bound_to("127.0.0.1", port)) for _ in range(2)]
    await listeners[0].start()
    with pytest.raises(OSError, match="in use"):
        await listeners[1].start()
    with pytest.raises(httpx.ConnectError, match="does not run"):
        await listeners[1].get("/health", 30)
    assert (await listeners[0].get("/health", 30)).json() == {"status": "ok"}
    await listeners[0].stop()
    with pytest.raises(httpx.ConnectError, match="does not run"):
        await listeners[0].get("/health", 30)


async def test_two_replicas_of_a_node_have_ports_of_their_own() -> None:
    one, other = bound_to("127.0.0.1"), bound_to("127.0.0.1")
    assert one.getsockname() != other.getsockname()
    one.close()
    other.close()


async def test_a_replica_counts_as_ready_when_it_is_known_or_has_waited_long_enough() -> None:
    looks = 0

    async def met() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise httpx.ConnectError("not yet")
        return looks > 2

    await acquainted(met, 60.0, "others")
    assert looks == 3

    async def never() -> bool:
        return False

    async with asyncio.timeout(30):
        await acquainted(never, 0.2, "others")


def test_an_engine_may_be_away_for_a_while_but_not_for_ever() -> None:
    patience = Patience(60.0)
    assert not patience.over(100.0)
    assert not patience.over(159.0)
    assert patience.over(160.0)
    patience.renew()
    assert not patience.over(200.0)
    assert not patience.over(259.0)


async def through(app: Any, kind: str, *events: Message) -> list[Message]:
    """What an ASGI application sends when it is called so."""
    came, sent = list(events), list[Message]()

    async def receive() -> Message:
        return came.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": kind, "method": "GET", "path": "/health", "query_string": b"", "headers": [], "asgi": {"version": "3.0"}}
    await app(scope, receive, send)
    return sent


async def test_serve_may_begin_and_end_the_app_without_a_second_lifespan() -> None:
    parts = Parts()
    sent = await through(Passage(parts.app), "lifespan", {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert parts.events == []


async def test_through_the_proxy_an_answer_has_one_request_id() -> None:
    parts = Parts()
    names = [name for name, _ in (await through(parts.app, "http"))[0]["headers"]]
    assert REQUEST_ID_HEADER.encode() in names
    through_serve = await through(Passage(parts.app), "http")
    assert [name for name, _ in through_serve[0]["headers"]] == [name for name in names if name != REQUEST_ID_HEADER.encode()]
    assert through_serve[1]["body"] == b'{"status":"ok"}'
