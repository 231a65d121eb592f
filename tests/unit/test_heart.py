"""An encoder beats for whoever asked, as long as it lives, and says when it goes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from services.encoder.faults.registry import Faults
from services.encoder.heart import Heart
from services.encoder.publisher import Publisher
from services.encoder.settings import EncoderSettings
from shared.control import EncoderState, Memory, Offer, Subscription, Transport
from shared.errors import EncoderOverloaded, InvalidRequest
from shared.seam import LOOPBACK
from shared.wire import Heartbeat, read_header

HERE, THERE = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"


@dataclass
class Body:
    """All that a heart touches."""

    items_in_work: int = 3
    batch_seconds: float = 0.0
    silenced: bool = False
    beats: list[tuple[str, Heartbeat]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    agreed: list[tuple[str, Offer | None]] = field(default_factory=list)
    parted: list[str] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def heart(self, max_subscriptions: int = 64) -> Heart:
        body = self

        class Listening(Publisher):
            def __init__(self) -> None:
                self.seam = LOOPBACK

            def beat(self, endpoint: str, frame: bytes) -> None:
                beat = read_header(frame)
                assert isinstance(beat, Heartbeat)
                body.beats.append((endpoint, beat))
                body.heard.set()

            def forget(self, endpoint: str) -> None:
                body.forgotten.append(endpoint)
                body.heard.set()

        class Muting(Faults):
            @property
            def muted(self) -> bool:
                return body.silenced

        class Agreeing:
            def agree(self, endpoint: str, offer: Offer | None) -> Transport:
                body.agreed.append((endpoint, offer))
                return "shm"

            def forget(self, endpoint: str) -> None:
                body.parted.append(endpoint)

        settings = EncoderSettings.model_validate({"stall_timeout": 20, "max_items": 7})
        return Heart(settings, "encoder-1", self, Listening(), Muting(), Agreeing(), max_subscriptions)

    async def until(self, beats: int = 0, forgotten: int = 0) -> None:
        async with asyncio.timeout(5):
            while len(self.beats) < beats or len(self.forgotten) < forgotten:
                self.heard.clear()
                await self.heard.wait()

    def heard_of(self, endpoint: str) -> list[EncoderState]:
        return [beat.state for place, beat in self.beats if place == endpoint]


def subscription(endpoint: str = HERE, interval: float = 0.01, lease: float = 5) -> Subscription:
    return Subscription(reply_to=endpoint, interval=interval, lease=lease)


async def test_the_first_beat_comes_at_once_and_tells_the_load() -> None:
    body = Body()
    body.heart().subscribe(subscription(interval=60, lease=600))
    expected = Heartbeat(encoder_id="encoder-1", state=EncoderState.READY, items_in_work=3, max_items=7)
    assert body.beats == [(HERE, expected)]


async def test_each_subscriber_has_its_own_interval() -> None:
    body = Body()
    heart = body.heart()
    heart.subscribe(subscription(THERE, interval=60, lease=600))
    heart.subscribe(subscription(HERE))
    await body.until(beats=6)
    assert len(body.heard_of(THERE)) == 1


async def test_a_lease_that_is_not_renewed_ends() -> None:
    body = Body()
    heart = body.heart()
    heart.subscribe(subscription(lease=0.05))
    heart.subscribe(subscription(THERE, interval=0.02, lease=0.02))
    heart.subscribe(subscription(THERE, interval=0.02, lease=5))
    await body.until(forgotten=1)
    assert body.forgotten == [HERE]
    assert len(heart) == 1
    before = len(body.heard_of(HERE))
    await body.until(beats=len(body.beats) + 3)
    assert len(body.heard_of(HERE)) == before


async def test_subscriptions_are_bounded_and_renewals_always_taken() -> None:
    body = Body()
    heart = body.heart(max_subscriptions=1)
    heart.subscribe(subscription(interval=60, lease=0.05))
    with pytest.raises(EncoderOverloaded, match="subscribers"):
        heart.subscribe(subscription(THERE))
    heart.subscribe(subscription(interval=60, lease=0.05))
    await body.until(forgotten=1)
    heart.subscribe(subscription(THERE))
    assert len(heart) == 1


@pytest.mark.parametrize("silenced", [False, True])
async def test_an_address_that_cannot_be_sent_to_is_refused(silenced: bool) -> None:
    heart = Body(silenced=silenced).heart()
    with pytest.raises(InvalidRequest, match="reply_to"):
        heart.subscribe(subscription("tcp://0.0.0.0:1"))
    assert len(heart) == 0


async def test_everyone_hears_at_once_of_draining_and_of_the_end_and_then_nothing() -> None:
    body = Body()
    heart = body.heart()
    for endpoint in (HERE, THERE):
        heart.subscribe(subscription(endpoint, interval=0.05, lease=600))
    heart.announce(EncoderState.DRAINING)
    assert [body.heard_of(endpoint) for endpoint in (HERE, THERE)] == [["ready", "draining"]] * 2
    await body.until(beats=6)
    heart.stop()
    assert [body.heard_of(endpoint)[-1] for endpoint in (HERE, THERE)] == ["leaving"] * 2
    count = len(body.beats)
    await asyncio.sleep(0.15)
    assert len(body.beats) == count


@pytest.mark.parametrize("how", ["muted", "the tower hangs"])
async def test_a_wedged_or_muted_encoder_is_silent_until_it_is_well(how: str) -> None:
    body = Body()
    heart = body.heart()
    if how == "muted":
        body.silenced = True
    else:
        body.batch_seconds = 20.1
    heart.subscribe(subscription())
    await asyncio.sleep(0.1)
    assert body.beats == []
    body.silenced, body.batch_seconds = False, 19.9
    await body.until(beats=2)


async def test_a_loop_that_hangs_does_not_beat() -> None:
    body = Body()
    body.heart().subscribe(subscription())
    await body.until(beats=2)
    count = len(body.beats)
    time.sleep(0.2)  # noqa: ASYNC251
    assert len(body.beats) == count
    await body.until(beats=count + 1)


async def test_a_stall_and_its_end_are_each_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Log:
        def error(self, text: str, **_: object) -> None:
            lines.append(text)

        info = error

    monkeypatch.setattr("services.encoder.heart._log", Log())
    body = Body(batch_seconds=30)
    heart = body.heart()
    for _ in range(3):
        heart.subscribe(subscription(interval=60, lease=600))
    body.batch_seconds = 0
    for _ in range(3):
        heart.subscribe(subscription(interval=60, lease=600))
    assert lines == ["the tower hangs; heartbeats stop", "the tower is back; heartbeats go on"]


async def test_a_tower_that_hangs_shows_without_any_subscriber() -> None:
    body = Body()
    heart = body.heart()
    assert not heart.stalled
    body.batch_seconds = 20.1
    assert heart.stalled
    body.batch_seconds = 0.0
    assert not heart.stalled
    body.batch_seconds = float("inf")
    heart.subscribe(subscription())
    assert heart.stalled
    assert body.beats == []


async def test_each_subscription_is_told_by_what_transport_and_a_lease_that_ends_lets_go_of_it() -> None:
    body = Body()
    heart = body.heart()
    memory = Memory(name="epd-language-1-probe", pid=1, fd=3, size=4096)
    offer = Offer(probe=memory, nonce="ab" * 32)
    asked = Subscription(reply_to=HERE, interval=0.01, lease=0.02)
    assert heart.subscribe(asked.model_copy(update={"offer": offer})) == "shm"
    assert body.agreed == [(HERE, offer)]
    await body.until(forgotten=1)
    assert body.parted == [HERE]
