"""The directory knows language services for as long as they say that they are there; failures of it are borne."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Event

import pytest
from ray.exceptions import ActorDiedError

from services.encoder.discovery import Remembered
from services.fleet import directory
from services.fleet.directory import Leases, Listing, NamedDirectory


def test_a_lease_ends_unless_it_is_renewed_or_given_back() -> None:
    now = [0.0]
    leases = Leases(clock=lambda: now[0], settles=0.0)
    leases.renew("http://a:1", 6.0)
    leases.renew("http://b:1", 6.0)
    now[0] = 5.0
    leases.renew("http://b:1", 6.0)
    assert leases.urls() == ["http://a:1", "http://b:1"]
    now[0] = 6.0
    assert leases.urls() == ["http://b:1"]
    leases.release("http://b:1")
    leases.release("http://b:1")
    assert leases.urls() == []


def test_it_holds_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_MOST", 2)
    now = [0.0]
    leases = Leases(clock=lambda: now[0], settles=0.0)
    leases.renew("http://a:1", 1.0)
    leases.renew("http://b:1", 9.0)
    with pytest.raises(ValueError, match="2 language services"):
        leases.renew("http://c:1", 9.0)
    leases.renew("http://b:1", 9.0)
    now[0] = 2.0
    leases.renew("http://c:1", 9.0)
    assert leases.urls() == ["http://b:1", "http://c:1"]


async def test_one_that_was_made_anew_does_not_say_that_there_are_none() -> None:
    now = [0.0]
    leases = Leases(clock=lambda: now[0], settles=0.0)

    class Found:
        async def urls(self) -> Sequence[str]:
            return leases.urls()

    languages = Remembered(Found(), "directory")
    both = ["http://a:1", "http://b:1"]
    for url in both:
        leases.renew(url, 6.0)
    assert await languages.urls() == both
    leases = Leases(clock=lambda: now[0])
    assert await languages.urls() == both
    leases.renew("http://a:1", 6.0)
    now[0] = 1.9
    assert await languages.urls() == both
    leases.renew("http://b:1", 6.0)
    now[0] = 2.0
    leases.release("http://a:1")
    assert await languages.urls() == ["http://b:1"]


class Shaky:
    """A directory that a test breaks."""

    def __init__(self) -> None:
        self.broken = False
        self.calls = 0
        self.leases = Leases(settles=0.0)

    async def renew(self, url: str, seconds: float) -> None:
        self.calls += 1
        if self.broken:
            raise RuntimeError("the node died")
        self.leases.renew(url, seconds)

    async def release(self, url: str) -> None:
        if self.broken:
            raise RuntimeError("the node died")
        self.leases.release(url)

    async def urls(self) -> Sequence[str]:
        return self.leases.urls()

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(10):
            while self.calls < calls:
                await asyncio.sleep(0.01)


async def test_a_service_is_in_it_while_it_is_up_also_after_the_directory_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_RENEWAL", 0.01)
    shaky = Shaky()
    async with Listing(shaky, "http://a:1"):
        await shaky.until(2)
        assert await shaky.urls() == ["http://a:1"]
        shaky.broken = True
        await shaky.until(shaky.calls + 2)
        shaky.broken, shaky.leases = False, Leases(settles=0.0)
        await shaky.until(shaky.calls + 2)
        assert await shaky.urls() == ["http://a:1"]
    assert await shaky.urls() == []


async def test_a_service_ends_though_the_directory_does_not_answer() -> None:
    shaky = Shaky()
    async with Listing(shaky, "http://a:1"):
        await shaky.until(1)
        shaky.broken = True


class Method:
    """A method of an actor that a test keeps waiting."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    async def remote(self) -> list[str]:
        await self.answers.wait()
        return ["http://a:1"]


class Actor:
    def __init__(self) -> None:
        self.urls = Method()


async def test_the_first_handle_is_kept_by_whoever_asks_also_when_the_actor_takes_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray ends the actor when its maker drops that handle."""
    actor, opened, go_on = Actor(), list[Actor](), Event()

    def open_slowly(_: NamedDirectory) -> Actor:
        go_on.wait(30)
        opened.append(actor)
        return actor

    monkeypatch.setattr(NamedDirectory, "_open", open_slowly)
    monkeypatch.setattr(directory, "_TIMEOUT", 0.05)
    named = NamedDirectory("default")
    for _ in range(2):
        results = await asyncio.gather(named.urls(), named.urls(), return_exceptions=True)
        assert [type(result) for result in results] == [TimeoutError, TimeoutError]
        go_on.set()
    monkeypatch.setattr(directory, "_TIMEOUT", 30.0)
    actor.urls.answers.set()
    assert await named.urls() == ["http://a:1"]
    assert opened == [actor]


async def test_an_actor_that_died_for_good_is_replaced_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        class urls:  # noqa: N801
            @staticmethod
            async def remote() -> list[str]:
                raise ActorDiedError

    alive = Actor()
    alive.urls.answers.set()
    actors: list[object] = [Dead(), alive]
    monkeypatch.setattr(NamedDirectory, "_open", lambda _: actors.pop(0))
    named = NamedDirectory("default")
    with pytest.raises(ActorDiedError):
        await named.urls()
    assert await named.urls() == ["http://a:1"]
