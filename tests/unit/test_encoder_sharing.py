"""Equal pictures at the same time: what one item is at, others share; who leaves, fails or dawdles hurts nobody else."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from PIL import Image

from services.encoder import prepare
from services.encoder.faults.base import Stage
from services.encoder.faults.stages import Hang
from services.encoder.sandbox.process import Sandbox
from shared.control import EncodeResponse
from shared.errors import EmbeddingTimeout, InvalidMedia
from shared.flight import SingleFlight
from shared.identity import MediaItem
from tests.unit.caching import ENTRY_BYTES, TENANT, Notebook, answered, computed, done, lookups, message, other_bytes
from tests.unit.faults.calls import setting
from tests.unit.test_pipeline import (
    FEATURE_BYTES,
    PICTURE,
    THREADS,
    Bench,
    Model,
    Recorder,
    bench,
    leave,
    picture,
    pictures,
    until,
)


@dataclass
class Followed:
    """How often an item has joined another that was at it."""

    count: int = 0

    async def times(self, count: int) -> None:
        """Returns when it has happened so many times."""
        await until(lambda: self.count >= count)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    followed, follow = Followed(), SingleFlight.follow

    def noted(flights: SingleFlight[Any, Any], key: Any) -> Any:
        flight = follow(flights, key)
        followed.count += flight is not None
        return flight

    monkeypatch.setattr(SingleFlight, "follow", noted)
    return followed


async def decoding(b: Bench, *media: bytes, **request: Any) -> asyncio.Task[EncodeResponse]:
    """A call whose picture is being decoded until the test opens the door."""
    b.model.decoding.open.clear()
    call = b.call(*media, **request)
    await b.model.decoding.until_reached()
    return call


@pytest.mark.parametrize("calls", [64, 1])
async def test_64_equal_pictures_at_once_are_decoded_and_computed_once(calls: int) -> None:
    async with bench() as b:
        asked = [b.call(*[PICTURE] * (64 // calls)) for _ in range(calls)]
        answers = await asyncio.gather(*map(done, asked))
        assert (b.model.decoded, computed(b)) == ([8], [8])
        messages = [await message(b) for _ in range(64)]
        assert len({each.header.content_hash for each in messages}) == 1
        assert all(torch.equal(each.tensors["embeds"], messages[0].tensors["embeds"]) for each in messages)
        for level in ("media", "embeddings"):
            found = lookups(b, level)
            assert (found.pop("miss"), sum(found.values())) == (1, 63)
        assert sum("tower" in item.timings for answer in answers for item in answer.items) == 1
        await b.assert_empty()


async def test_who_joins_another_tells_so_and_how_long_it_waited(followed: Followed) -> None:
    notebook = Notebook()
    async with bench(tracer=notebook) as b:
        b.model.tower.open.clear()
        leading = await decoding(b, PICTURE)
        joining = b.call(PICTURE)
        await followed.times(1)
        b.model.decoding.open.set()
        await followed.times(2)  # the tower, too
        b.model.tower.open.set()
        assert (await done(leading)).items[0].timings.keys() >= {"decode", "tower"}
        timings = (await done(joining)).items[0].timings
        assert timings.keys() == {"fetch", "digest", "joined", "publish"}
        assert timings["joined"] > 0
        assert lookups(b, "media") == lookups(b, "embeddings") == {"miss": 1, "joined": 1}
        spared = sorted(span for span in notebook.spared() if span[1])
        assert spared == [("decode", "joined"), ("decode", "none"), ("tower", "joined"), ("tower", "none")]


async def test_other_bytes_of_a_picture_that_is_in_work_share_its_features_and_its_run_of_the_tower(followed: Followed) -> None:
    async with bench() as b:
        b.model.tower.open.clear()
        first = b.call(PICTURE)
        await b.model.tower.until_reached()
        second = b.call(other_bytes())
        await followed.times(1)
        assert b.metric("epd_encoder_bytes_in_work") == FEATURE_BYTES
        b.model.tower.open.set()
        hashes = {(await done(call)).items[0].content_hash for call in (first, second)}
        assert (len(hashes), b.model.decoded, computed(b)) == (1, [8, 8], [8])
        assert lookups(b, "embeddings") == {"miss": 1, "joined": 1}


async def test_who_follows_holds_no_thread_and_no_place_in_the_towers_queue(followed: Followed) -> None:
    async with bench() as b:
        leading = await decoding(b, PICTURE)
        following = [b.call(PICTURE) for _ in range(50)]
        await followed.times(50)
        other = b.call(picture(9))
        await b.model.decoding.until_reached()  # a thread was free for it
        b.model.tower.open.clear()
        b.model.decoding.open.set()
        await followed.times(100)
        await until(lambda: b.metric("epd_encoder_queue_items") + len(computed(b)) == 2)
        b.model.tower.open.set()
        await asyncio.gather(*map(done, (leading, other, *following)))
        assert sorted(computed(b)) == [8, 9]


async def test_a_picture_does_not_wait_for_a_call_that_has_it_behind_many_others() -> None:
    recorder = Recorder()
    async with bench(recorder) as b:
        b.model.decoding.open.clear()
        many = b.call(*pictures(2 * THREADS + 30), picture(5))
        await b.model.decoding.until_reached(THREADS)
        one = b.call(picture(5))
        await recorder.fetched(2 * THREADS + 32)
        b.model.decoding.open.set()
        await done(one)
        assert b.model.decoded.index(5) <= 2 * THREADS + 2
        await done(many)
        assert (b.model.decoded.count(5), computed(b).count(5)) == (1, 1)


async def test_features_of_a_picture_in_work_are_held_once_until_the_last_has_left(followed: Followed) -> None:
    async with bench() as b:
        b.model.tower.open.clear()
        first = b.call(PICTURE)
        await b.model.tower.until_reached()
        others = [b.call(PICTURE) for _ in range(3)]
        await followed.times(3)
        assert b.metric("epd_encoder_bytes_in_work") == FEATURE_BYTES
        await leave(first)
        assert b.metric("epd_encoder_bytes_in_work") == FEATURE_BYTES
        for call in others:
            await leave(call)
        assert b.metric("epd_encoder_bytes_in_work") == 0
        await b.assert_empty()


async def test_a_named_picture_that_is_in_work_is_not_fetched_again_either(followed: Followed) -> None:
    async with bench() as b:
        b.model.tower.open.clear()
        first = b.call(PICTURE, content_hash=TENANT)
        await b.model.tower.until_reached()
        second = b.call("http://a/", content_hash=TENANT)
        await followed.times(1)
        b.model.tower.open.set()
        await asyncio.gather(done(first), done(second))
        assert (b.web.asked, computed(b)) == ([], [8])
        assert lookups(b, "embeddings") == {"miss": 1, "joined": 1}


async def test_bytes_that_are_no_picture_spoil_no_name_for_others(followed: Followed) -> None:
    async with bench() as b:
        good = await decoding(b, PICTURE, content_hash=TENANT)
        with pytest.raises(InvalidMedia):
            await done(b.call(b"nonsense", content_hash=TENANT))
        b.model.decoding.open.set()
        await done(good)
        assert followed.count == 0


async def test_what_does_not_fit_is_shared_at_once_and_not_kept(followed: Followed) -> None:
    async with bench(embedding_cache_bytes=100) as b:
        b.model.tower.open.clear()
        calls = [b.call(PICTURE)]
        await b.model.tower.until_reached()
        calls += [b.call(PICTURE) for _ in range(3)]
        await followed.times(3)
        b.model.tower.open.set()
        await asyncio.gather(*map(done, calls))
        assert computed(b) == [8]
        await done(b.call(PICTURE))
        assert computed(b) == [8, 8]


# ------------------------------------------------------------------------------------------- those who leave, fail or dawdle


async def test_a_leader_that_leaves_while_decoding_hurts_nobody(followed: Followed) -> None:
    async with bench() as b:
        leading = await decoding(b, PICTURE)
        following = [b.call(PICTURE) for _ in range(5)]
        await followed.times(5)
        await leave(leading)
        assert b.cancelled("decode") == 1
        await b.model.decoding.until_reached()  # by one of those who followed, for all
        b.model.decoding.open.set()
        answers = await asyncio.gather(*map(done, following))
        assert [answer.items[0].num_tokens for answer in answers] == [8] * 5
        assert (b.model.decoded, computed(b)) == ([8, 8], [8])
        for _ in following:
            await message(b)
        await b.assert_empty()


async def test_a_leader_that_leaves_while_the_tower_computes_hurts_nobody(followed: Followed) -> None:
    async with bench() as b:
        b.model.tower.open.clear()
        leading = b.call(PICTURE)
        await b.model.tower.until_reached()
        following = [b.call(PICTURE) for _ in range(5)]
        await followed.times(5)
        await leave(leading)
        assert b.cancelled("tower") == 1
        await until(lambda: b.metric("epd_encoder_queue_items") == 1)
        b.model.tower.open.set()
        await asyncio.gather(*map(done, following))
        assert (b.model.decoded, computed(b)) == ([8], [8, 8])
        for _ in following:
            assert bool(((await message(b)).tensors["embeds"] == 8).all())
        await b.assert_empty()


async def test_a_follower_that_leaves_is_counted_and_hurts_nobody(followed: Followed) -> None:
    async with bench() as b:
        b.model.tower.open.clear()
        leading = await decoding(b, PICTURE)
        first, second = b.call(PICTURE), b.call(PICTURE)
        await followed.times(2)
        await leave(first)
        assert b.cancelled("decode") == 1
        b.model.decoding.open.set()
        await followed.times(3)
        await leave(second)
        assert b.cancelled("tower") == 1
        b.model.tower.open.set()
        await done(leading)
        await message(b)
        await b.assert_empty()


@pytest.mark.parametrize("stage", ["decode", "tower"])
@pytest.mark.parametrize("short", ["leader", "follower"])
async def test_each_has_the_deadline_of_its_own(stage: str, short: str, followed: Followed) -> None:
    timeouts = {"leader": 10.0, "follower": 10.0, short: 0.3}
    async with bench() as b:
        door = b.model.decoding if stage == "decode" else b.model.tower
        door.open.clear()
        calls = {"leader": b.call(PICTURE, timeout=timeouts["leader"])}
        await door.until_reached()
        calls["follower"] = b.call(PICTURE, timeout=timeouts["follower"])
        await followed.times(1)
        with pytest.raises(EmbeddingTimeout):
            await done(calls.pop(short))
        door.open.set()
        await done(*calls.values())
        await message(b)
        await b.assert_empty()


async def test_a_leader_that_a_fault_holds_up_holds_nobody_else_up() -> None:
    fault = Hang(at=Stage.HASHED, count=1)
    faults = setting(fault)
    async with bench(faults) as b:
        hanging = b.call(PICTURE)
        await until(lambda: fault.fired == 1)
        await answered(b, PICTURE)
        assert (b.model.decoded, computed(b)) == ([8], [8])
        await faults.clear()
        await done(hanging)
        await message(b)
        assert computed(b) == [8]
        await b.assert_empty()


class Fragile(Model):
    """Its tower fails for the first batch, and holds the next one up."""

    def encode(self, items: Sequence[MediaItem]) -> None:
        super().encode(items)
        if len(self.batches) == 1:
            self.tower.open.clear()
            raise RuntimeError("out of memory")


async def test_where_the_tower_fails_for_one_the_others_each_try_for_themselves(followed: Followed) -> None:
    async with bench(half=Fragile(), max_batch_items=1) as b:
        b.model.tower.open.clear()
        leading = b.call(PICTURE)
        await b.model.tower.until_reached()
        following = [b.call(PICTURE) for _ in range(3)]
        await followed.times(3)
        b.model.tower.open.set()
        with pytest.raises(RuntimeError, match="out of memory"):
            await done(leading)
        await until(lambda: b.metric("epd_encoder_queue_items") == 2)  # one of the three is in the tower
        b.model.tower.open.set()
        for call in following:
            await done(call)
            assert bool(((await message(b)).tensors["embeds"] == 8).all())
        await b.assert_empty()


async def test_bytes_that_are_no_picture_are_found_so_once_and_everybody_is_told_where_his_are(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, free, reached = [], threading.Event(), threading.Event()

    def decode(data: bytes, max_pixels: int, param: str | None, sandbox: Sandbox) -> Image.Image:
        if data == b"nonsense":
            decoded.append(param)
            reached.set()
            assert free.wait(5)
        return decode_image(data, max_pixels, param, sandbox)

    decode_image = prepare.decode_image
    monkeypatch.setattr(prepare, "decode_image", decode)
    async with bench() as b:
        first = b.call(b"nonsense")
        assert await asyncio.to_thread(reached.wait, 5)
        others = [b.call("http://slow/", b"nonsense"), b.call("http://slow/", "http://slower/", b"nonsense")]
        await followed.times(2)
        free.set()
        places = []
        for call in (first, *others):
            with pytest.raises(InvalidMedia, match="not a picture") as caught:
                await done(call)
            places.append(caught.value.param)
        assert places == ["messages.0", "messages.1", "messages.2"]
        assert decoded == ["messages.0"]
        with pytest.raises(InvalidMedia):  # an error is not kept
            await done(b.call(b"nonsense"))
        assert len(decoded) == 2


# --------------------------------------------------------------------------------------------------------- all at the same time


async def test_whatever_comes_and_goes_everybody_gets_his_own_pictures_and_nothing_stays() -> None:
    rng = random.Random(1)
    formats = [picture, other_bytes]
    # Room for about three of eight pictures, so that all that can happen does.
    async with bench(embedding_cache_bytes=3 * ENTRY_BYTES, media_cache_bytes=4000, max_batch_items=2, max_items=1000) as b:
        wanted: dict[str, list[int]] = {}
        running: list[asyncio.Task[EncodeResponse]] = []
        for number in range(300):
            widths = rng.choices(range(8, 16), k=rng.randint(1, 3))
            name = rng.choice([None, f"tenant:{widths[0]:032x}"])
            wanted[f"r/{number}"] = widths = [widths[0]] * len(widths) if name else widths
            media = [rng.choice(formats)(width) for width in widths]
            running.append(b.call(*media, content_hash=name, request_id=f"r/{number}", num_items=len(media)))
            for _ in range(rng.randint(0, 30)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                rng.choice(running).cancel()
        outcomes = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 30)
        good = [outcome for outcome in outcomes if isinstance(outcome, EncodeResponse)]
        assert len(good) > 150
        assert all(isinstance(outcome, EncodeResponse | asyncio.CancelledError) for outcome in outcomes)
        came: dict[str, int] = {}
        while sum(came.values()) < sum(len(answer.items) for answer in good):
            one = await message(b)
            width = wanted[one.header.request_id][one.header.item]
            assert one.header.num_tokens == width
            assert bool((one.tensors["embeds"] == width).all())
            came[one.header.request_id] = came.get(one.header.request_id, 0) + 1
        assert b.metric("epd_encoder_bytes_in_work") == b.metric("epd_encoder_items_in_work") == 0
        assert not b.pipeline._cache._works
        assert not b.pipeline._cache._held
        assert len(b.pipeline._cache._decoding) == len(b.pipeline._cache._towers) == 0
