"""Who may be asked: signs of life, compatibility, registration, and what becomes of work when an encoder is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from prometheus_client import generate_latest

from services.language.embeddings.dispatch import ConnectionBroke, Dispatcher, Refused
from services.language.embeddings.encoder import EncoderView
from services.language.embeddings.pool import EncoderPool
from services.language.embeddings.receiver import Holding, Wait
from services.language.embeddings.traffic import Traffic
from services.language.prompt.conversation import MediaSource
from shared.control import EncoderState, EncoderStatus, Registration, ServiceInfo, Subscription
from shared.errors import (
    EncoderFailed,
    EncoderLost,
    EncoderOverloaded,
    EncoderUnavailable,
    EpdError,
    InvalidMedia,
    InvalidRequest,
)
from shared.telemetry import Metrics
from shared.wire import VERSION, Heartbeat

A, B = "http://a:1", "http://b:1"


@dataclass
class Options:
    health_interval: float = 0.01
    liveness_timeout: float = 0.2
    breaker_failures: int = 3


@dataclass
class Fleet:
    """Stands for the network: which encoder answers what, and which shows life."""

    ids: dict[str, str] = field(default_factory=lambda: {A: "a", B: "b"})
    answers: dict[str, Exception | EncoderState] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    fingerprint: str = "same"
    wire_version: int = VERSION
    pool: EncoderPool | None = None
    subscriptions: list[Subscription] = field(default_factory=list)

    def info(self, url: str) -> ServiceInfo:
        return ServiceInfo(
            service="encoder",
            service_id=self.ids[url],
            version="0",
            wire_version=self.wire_version,
            model="m",
            model_type="t",
            model_fingerprint=self.fingerprint,
            device="cpu",
            dtype="float32",
            parameters={},
            parameters_total=0,
        )

    async def subscribe(self, url: str, subscription: Subscription) -> EncoderStatus:
        self.subscriptions.append(subscription)
        answer = self.answers.get(url, EncoderState.READY)
        if isinstance(answer, Exception):
            raise answer
        asyncio.get_running_loop().call_soon(self.beat, url)
        return EncoderStatus(info=self.info(url), state=answer, items_in_work=0, max_items=4)

    def beat(self, url: str, state: EncoderState = EncoderState.READY) -> None:
        if url not in self.silent and self.pool is not None:
            self.pool.sign(self.ids[url], Heartbeat(encoder_id=self.ids[url], state=state, items_in_work=0, max_items=4))


@asynccontextmanager
async def running(fleet: Fleet, *urls: str, metrics: Metrics | None = None, **options: Any) -> AsyncIterator[EncoderPool]:
    dispatcher = cast(Dispatcher, fleet)
    settings = Options(**options)
    pool = EncoderPool(urls, "same", dispatcher, lambda url: f"tcp://reply-to-{url[7]}:1", settings, metrics or Metrics())
    fleet.pool = pool
    async with pool:
        yield pool


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def of(pool: EncoderPool, url: str) -> EncoderView:
    return next(view for view in pool.describe() if view.url == url)


def sources(number: int) -> list[MediaSource]:
    return [MediaSource(index, "image", f"messages.{index}", digest=f"{index:032x}") for index in range(number)]


def fail(pool: EncoderPool, error: EpdError) -> None:
    [share] = pool.assign(sources(1))
    pool.report(share, error)


async def test_ready_takes_an_answer_and_a_sign_of_life_on_the_data_channel() -> None:
    fleet = Fleet(silent={A})
    async with running(fleet, A) as pool:
        await until(lambda: "no sign of life" in of(pool, A).reason)
        with pytest.raises(EncoderUnavailable, match="no sign of life of it arrives at tcp://reply-to-a:1"):
            pool.assign(sources(1))
        fleet.silent.clear()
        await until(pool.ready)
        assert fleet.subscriptions[-1].reply_to == "tcp://reply-to-a:1"


async def test_one_that_falls_silent_is_lost_and_so_is_its_work_though_it_still_answers() -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        [share] = pool.assign(sources(1))
        wait = Wait([0], Holding())
        with share.encoder.asked(wait):
            fleet.silent.add(A)
            with pytest.raises(EncoderLost, match=r"no sign of life for 0\.2 s"):
                await asyncio.wait_for(wait.done, 5)
        pool.report(share, EncoderLost("gone"))
        assert of(pool, A).state == "down"
        assert of(pool, A).failures == {"encoder_lost": 1}
        fleet.silent.clear()
        await until(pool.ready)


async def test_any_message_is_a_sign_of_life() -> None:
    fleet = Fleet()
    async with running(fleet, A, liveness_timeout=0.4) as pool:
        await until(pool.ready)
        fleet.silent.add(A)
        for _ in range(20):
            pool.sign("a", None)
            await asyncio.sleep(0.03)
        assert pool.ready() == 1


async def test_a_broken_connection_takes_it_out_until_it_answers_again() -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        fleet.answers[A] = ConnectionBroke("refused")
        fail(pool, ConnectionBroke("reset"))
        assert pool.ready() == 0
        fleet.answers.clear()
        await until(pool.ready)


async def test_a_slow_answer_does_not_take_out_one_that_shows_life() -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        fleet.answers[A] = EncoderFailed("slow")
        for _ in range(10):
            fleet.beat(A)
            await asyncio.sleep(0.03)
        assert pool.ready() == 1


async def test_failures_in_a_row_open_the_circuit_and_a_probe_closes_it() -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        for _ in range(3):
            fail(pool, EncoderFailed("500"))
        with pytest.raises(EncoderUnavailable, match="circuit is open"):
            pool.assign(sources(1))
        await until(lambda: of(pool, A).circuit == "half-open")
        [probe] = pool.assign(sources(2))
        with pytest.raises(EncoderUnavailable):
            pool.assign(sources(1))
        pool.report(probe, None)
        pool.assign(sources(1))


async def test_a_probe_is_let_in_when_its_time_has_come_though_nothing_else_happens() -> None:
    fleet = Fleet()
    async with running(fleet, A, health_interval=60.0, liveness_timeout=2.0) as pool:
        await until(pool.ready)
        for _ in range(3):
            fail(pool, EncoderFailed("500"))
        with pytest.raises(EncoderUnavailable, match="circuit is open"):
            pool.assign(sources(1))
        while of(pool, A).circuit == "open":
            fleet.beat(A)
            await asyncio.sleep(0.01)
        assert pool.assign(sources(1))


async def test_neither_the_clients_fault_nor_load_is_held_against_an_encoder() -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        for _ in range(5):
            fail(pool, InvalidMedia("broken picture"))
            fail(pool, EncoderOverloaded("full"))
        assert of(pool, A).circuit == "closed"


async def test_a_restarted_process_is_new() -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        for _ in range(3):
            fail(pool, EncoderFailed("500"))
        wait = Wait([0], Holding())
        encoder = next(iter(pool._encoders.values()))
        with encoder.asked(wait):
            fleet.ids[A] = "a2"
            with pytest.raises(EncoderFailed, match="restarted"):
                await asyncio.wait_for(wait.done, 5)
        await until(pool.ready)
        assert pool.assign(sources(1))


async def test_what_its_predecessor_had_in_work_is_not_held_against_a_new_process() -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        shares = [pool.assign(sources(1))[0] for _ in range(4)]
        fleet.ids[A] = "a2"
        await until(lambda: of(pool, A).encoder_id == "a2" and pool.ready())
        for share in shares:
            pool.report(share, EncoderFailed("restarted"))
        assert of(pool, A).circuit == "closed"


async def test_a_second_encoder_at_the_same_address_does_not_end_the_work_of_the_first() -> None:
    fleet = Fleet()
    async with running(fleet, A, liveness_timeout=0.4) as pool:
        await until(pool.ready)
        wait = Wait([0], Holding())
        with next(iter(pool._encoders.values())).asked(wait):
            fleet.ids[A] = "other"
            for _ in range(10):
                pool.sign("a", None)
                await asyncio.sleep(0.02)
            assert not wait.done.done()
        assert of(pool, A).encoder_id == "a"


async def test_silence_ends_the_work_of_one_that_is_known_to_be_down_too() -> None:
    """New connections are refused, but those that stand hang: nothing will ever come of them."""
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        [share] = pool.assign(sources(1))
        wait = Wait([0], Holding())
        with share.encoder.asked(wait):
            fleet.silent.add(A)
            fleet.answers[A] = ConnectionBroke("no route to host")
            await until(lambda: of(pool, A).state == "down")
            with pytest.raises(EncoderLost):
                await asyncio.wait_for(wait.done, 5)


async def test_a_watcher_that_is_cancelled_just_when_it_is_woken_ends() -> None:
    for turns in range(6):
        fleet = Fleet()
        async with running(fleet, A, health_interval=5) as pool:
            await until(pool.ready)
            next(iter(pool._encoders.values())).look_now.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks = list(pool._tasks.values())
        assert all(task.done() for task in tasks)


async def test_one_process_at_two_addresses_is_alive_at_both() -> None:
    fleet = Fleet(ids={A: "same", B: "same"})
    async with running(fleet, A, B) as pool:
        await until(lambda: pool.ready() == 2)


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"wire_version": VERSION + 1}])
async def test_another_model_or_version_is_refused_until_it_changes(change: dict[str, Any]) -> None:
    fleet = Fleet(**change)
    async with running(fleet, A) as pool:
        await until(lambda: of(pool, A).state == "refused")
        with pytest.raises(InvalidRequest, match="refused: it"):
            pool.register(Registration(url=B, info=fleet.info(B), max_items=4))
        fleet.fingerprint, fleet.wire_version = "same", VERSION
        await until(pool.ready)


async def test_one_that_refuses_this_service_is_not_asked_until_it_does_not_and_its_reason_is_told() -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        await until(pool.ready)
        fleet.answers[A] = Refused("it refuses this service: different secrets")
        await until(lambda: of(pool, A).state == "refused")
        assert "different secrets" in of(pool, A).reason
        with pytest.raises(EncoderUnavailable, match="different secrets"):
            pool.assign(sources(1))
        fleet.beat(A)  # shows life, and is refused all the same
        assert of(pool, A).state == "refused"
        del fleet.answers[A]
        await until(pool.ready)


@pytest.mark.parametrize("curve", [False, True])
async def test_an_encoder_is_told_whether_the_data_channel_is_encrypted(curve: bool) -> None:
    fleet = Fleet()
    pool = EncoderPool([A], "same", cast(Dispatcher, fleet), lambda _: "tcp://reply-to:1", Options(), Metrics(), curve=curve)
    async with pool:
        await until(lambda: fleet.subscriptions)
    assert fleet.subscriptions[0].curve is curve


async def test_draining_and_goodbye() -> None:
    fleet = Fleet()
    async with running(fleet, A, B) as pool:
        await until(lambda: pool.ready() == 2)
        fleet.answers[A] = EncoderState.DRAINING
        fleet.beat(A, EncoderState.DRAINING)
        assert [share.encoder.url for share in pool.assign(sources(4))] == [B]
        fleet.answers[A] = ConnectionBroke("gone")
        fleet.beat(A, EncoderState.LEAVING)
        assert (of(pool, A).state, of(pool, A).reason) == ("down", "it said goodbye")


async def test_one_that_refuses_because_it_is_draining_is_not_asked_again_for_now() -> None:
    fleet = Fleet()
    async with running(fleet, A, health_interval=10) as pool:
        await until(pool.ready)
        fail(pool, EncoderUnavailable("The encoder is draining."))
        assert of(pool, A).state == "draining"


async def test_registration_and_goodbye() -> None:
    fleet = Fleet()
    metrics = Metrics()
    async with running(fleet, metrics=metrics) as pool:
        with pytest.raises(EncoderUnavailable, match="No encoder is configured"):
            pool.assign(sources(1))
        for _ in range(2):
            pool.register(Registration(url=f"{B}/", info=fleet.info(B), max_items=4))
        await until(pool.ready)
        assert (of(pool, B).source, of(pool, B).encoder_id) == ("registered", "b")
        fail(pool, EncoderFailed("500"))
        assert B.encode() in generate_latest(metrics.registry)
        fleet.answers[B] = ConnectionBroke("gone")
        fleet.beat(B, EncoderState.LEAVING)
        assert of(pool, B).state == "down"
        await until(lambda: pool.describe() == [])
        assert B.encode() not in generate_latest(metrics.registry)


@pytest.mark.parametrize("url", ["http://0.0.0.0:8001", "http://[::]:8001", "ftp://b:1", "http://", "b:1", "http://b:0"])
async def test_an_address_that_nobody_can_be_reached_at_is_refused(url: str) -> None:
    fleet = Fleet()
    async with running(fleet) as pool:
        with pytest.raises(InvalidRequest, match="cannot be reached there"):
            pool.register(Registration(url=url, info=fleet.info(A), max_items=4))


async def test_one_that_is_refused_is_forgotten_when_it_registers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    async with running(fleet, A) as pool:
        pool.register(Registration(url=B, info=fleet.info(B), max_items=4))
        await until(lambda: pool.ready() == 2)
        fleet.fingerprint = "other"
        await until(lambda: {view.state for view in pool.describe()} == {"refused"})
        monkeypatch.setattr("services.language.embeddings.pool.FORGET_AFTER", 0.0)
        await until(lambda: [view.url for view in pool.describe()] == [A])


async def test_items_of_one_request_are_spread_and_room_is_respected() -> None:
    fleet = Fleet()
    async with running(fleet, A, B) as pool:
        await until(lambda: pool.ready() == 2)
        shares = pool.assign(sources(8))
        assert sorted((share.encoder.url, len(share.sources)) for share in shares) == [(A, 4), (B, 4)]
        with pytest.raises(EncoderOverloaded) as full:
            pool.assign(sources(1))
        assert full.value.retry_after >= 1
        for share in shares:
            share.release()
            share.release()
        assert [view.in_flight for view in pool.describe()] == [0, 0]
        with pytest.raises(EncoderOverloaded):
            pool.assign(sources(9))
        assert [view.in_flight for view in pool.describe()] == [0, 0]


async def test_what_is_moved_goes_to_another() -> None:
    fleet = Fleet()
    async with running(fleet, A, B) as pool:
        await until(lambda: pool.ready() == 2)
        [share, *_] = pool.assign(sources(1))
        [other] = pool.assign(sources(3), frozenset({share.encoder}))
        assert other.encoder is not share.encoder
        with pytest.raises(EncoderUnavailable):
            pool.assign(sources(1), frozenset({share.encoder, other.encoder}))


async def test_in_a_large_fleet_one_that_falls_silent_is_looked_at_before_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that show life are hardly looked at there, and yet a broken connection is seen sooner than the silence counts."""
    monkeypatch.setattr(Traffic, "pause", lambda *_: 1000.0)
    fleet = Fleet()
    async with running(fleet, A, liveness_timeout=60.0) as pool:
        await until(pool.ready)
        looks = len(fleet.subscriptions)
        fleet.answers[A] = ConnectionBroke("refused")
        encoder = next(iter(pool._encoders.values()))
        silence = pool._traffic.suspect(1)
        pool._tick(encoder, silence / 2, silence, time.monotonic())
        await asyncio.sleep(0.2)
        assert len(fleet.subscriptions) == looks
        pool._tick(encoder, silence, silence, time.monotonic())
        await until(lambda: not pool.ready())
        assert of(pool, A).reason == "refused"


async def test_a_lease_outlasts_the_looks_of_a_large_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    async with running(fleet, A, B) as pool:
        await until(lambda: pool.ready() == 2)
        monkeypatch.setattr("services.language.embeddings.traffic._LOOKS_PER_SECOND", 0.1)
        encoder = next(iter(pool._encoders.values()))
        assert (pool._pause(encoder), pool._subscription(encoder).lease) == (40.0, 201.0)


async def test_a_registered_encoder_is_told_when_to_say_so_again_and_looked_at_when_it_was_down() -> None:
    fleet = Fleet()
    async with running(fleet, health_interval=60.0, liveness_timeout=60.0) as pool:
        registration = Registration(url=B, info=fleet.info(B), max_items=4)
        assert 0 <= pool.register(registration) <= 1
        await until(pool.ready)
        looks = len(fleet.subscriptions)
        fleet.answers[B] = ConnectionBroke("refused")
        fail(pool, ConnectionBroke("reset"))
        await until(lambda: len(fleet.subscriptions) > looks)
        fleet.answers.clear()
        pool.register(registration)
        await until(pool.ready)


async def test_of_many_encoders_that_are_down_a_failure_tells_some() -> None:
    urls = [f"http://{number}:1" for number in range(200)]
    fleet = Fleet(ids={url: url for url in urls})
    pool = EncoderPool(urls, "same", cast(Dispatcher, fleet), lambda _: "tcp://reply-to:1", Options(), Metrics())
    with pytest.raises(EncoderUnavailable, match="and 196 more") as none:
        pool.check(1)
    assert len(none.value.message) < 1000


async def test_more_encoders_than_it_watches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.language.embeddings.pool.MAX_ENCODERS", 1)
    fleet = Fleet()
    async with running(fleet) as pool:
        pool.register(Registration(url=A, info=fleet.info(A), max_items=4))
        with pytest.raises(InvalidRequest, match="that is all this service watches"):
            pool.register(Registration(url=B, info=fleet.info(B), max_items=4))
        pool.register(Registration(url=A, info=fleet.info(A), max_items=4))


async def test_one_that_takes_less_from_now_on_gets_no_more_than_that() -> None:
    fleet = Fleet()
    async with running(fleet, A, health_interval=60.0) as pool:
        await until(pool.ready)
        pool.sign("a", Heartbeat(encoder_id="a", state=EncoderState.READY, items_in_work=0, max_items=2))
        with pytest.raises(EncoderOverloaded):
            pool.assign(sources(3))
        assert pool.assign(sources(2))


async def test_signs_of_life_go_by_the_process_that_is_there_now() -> None:
    fleet = Fleet()
    async with running(fleet, A, health_interval=0.01) as pool:
        await until(pool.ready)
        fleet.ids[A] = "a2"
        await until(lambda: of(pool, A).encoder_id == "a2" and pool.ready())
        assert set(pool._processes) == {"a2"}
