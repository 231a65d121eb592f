"""Pictures that many requests want: asked for once, taken from the cache, and nobody pays for what happens to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch

from services.language.deadline import Deadline
from services.language.embeddings.attempt import Attempts
from services.language.embeddings.cache import EmbeddingCache
from services.language.embeddings.encoder import Share
from services.language.embeddings.failover import Failover
from services.language.embeddings.gather import Gatherer
from services.language.embeddings.job import Job
from services.language.embeddings.receiver import Holding, Receiver
from services.language.prompt.conversation import MediaSource
from shared.errors import (
    EmbeddingIncompatible,
    EmbeddingTimeout,
    EncoderFailed,
    EncoderOverloaded,
    EncoderUnavailable,
    EpdError,
    InvalidMedia,
    InvalidRequest,
)
from shared.identity import MediaItem
from shared.telemetry import Metrics
from shared.tracing import Span, Tracer, Value
from tests.unit.test_pool import A, B, Fleet, running, until

TOKENS = 4


def picture(number: int, index: int = 0, request: str = "r", supplied: str | None = None) -> MediaSource:
    """The picture with this number, at this place of a request."""
    return MediaSource(index, "image", f"messages.{request}.{index}", digest=f"{number:032x}", supplied=supplied)


@dataclass
class Encoders:
    """Stands for attempts: what was asked of encoders, to be answered by the test."""

    asked: list[tuple[Job, Share]] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    endings: list[asyncio.Future[None]] = field(default_factory=list)

    async def run(self, job: Job, share: Share) -> None:
        self.asked.append((job, share))
        self.budgets.append(job.tokens_left)
        ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.endings.append(ending)
        await ending

    def deliver(self, number: int, position: int = 0, content_hash: str | None = None) -> None:
        """One item of the ``number``-th call arrives."""
        job, share = self.asked[number]
        source = share.sources[position]
        item = MediaItem("image", TOKENS, (1, 4, 4), embeds=torch.zeros(TOKENS, 8), timings={"tower": 1.0})
        item.set_hash(content_hash or source.supplied or source.digest or "")
        job.arrived(source.index, item)

    def answer(self, number: int = 0) -> None:
        """All items of the ``number``-th call arrive."""
        for position in range(len(self.asked[number][1].sources)):
            self.deliver(number, position)
        self.endings[number].set_result(None)

    def fail(self, number: int, error: EpdError) -> None:
        self.endings[number].set_exception(error)

    async def until_asked(self, times: int) -> None:
        await until(lambda: len(self.asked) >= times)
        await settled()
        assert len(self.asked) == times


class Spans(Tracer):
    """Notes what spans are told."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Value]] = []

    def span(self, name: str, *, kind: Any = "internal", leaf: bool = False, caller: Any = None, **attributes: Value) -> Span:
        self.seen.append(attributes)
        return Noted(attributes)


class Noted(Span):
    def __init__(self, attributes: dict[str, Value]) -> None:
        self._attributes = attributes

    def set(self, **attributes: Value) -> None:
        self._attributes.update(attributes)


@dataclass
class Requests:
    gatherer: Gatherer
    encoders: Encoders
    metrics: Metrics
    spans: Spans

    def ask(self, *sources: MediaSource, budget: int = 100, seconds: float = 5.0) -> asyncio.Task[list[MediaItem]]:
        deadline = Deadline(seconds, own=False)
        return asyncio.create_task(self.gatherer.gather("r", sources, budget, deadline, {}, Holding()))

    async def followed_by(self, first: Sequence[MediaSource], followers: int) -> list[asyncio.Task[list[MediaItem]]]:
        """A request for ``first`` that is being served, and requests for picture 1 that wait for it, each with its own name."""
        tasks = [self.ask(*first)]
        await self.encoders.until_asked(1)
        tasks += [self.ask(picture(1, request=f"follower-{number}")) for number in range(followers)]
        await settled()
        return tasks

    def lookups(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("epd_cache_lookups_total", {"outcome": outcome}) or 0.0


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(*urls: str, cache_bytes: int = 2**20, max_waiting: int = 100, retries: int = 0) -> AsyncIterator[Requests]:
    encoders, metrics = Encoders(), Metrics()
    async with running(Fleet(), *urls, liveness_timeout=5.0) as pool:
        await until(lambda: pool.ready() == len(urls))
        failover = Failover(pool, cast(Attempts, encoders), retries, metrics)
        cache = EmbeddingCache(cache_bytes, metrics)
        spans = Spans()
        gatherer = Gatherer(failover, cache, cast(Receiver, None), max_waiting, metrics, spans)
        yield Requests(gatherer, encoders, metrics, spans)
        assert len(cache._flights) == 0
        assert [view.in_flight for view in pool.describe()] == [0] * len(urls)


async def test_many_requests_for_one_picture_ask_for_it_once() -> None:
    async with serving(A, B) as requests:
        tasks = await requests.followed_by([picture(1)], 63)
        requests.encoders.answer()
        found = [item for [item] in await asyncio.gather(*tasks)]
        assert len(requests.encoders.asked) == 1
        assert len({id(item.embeds) for item in found}) == 1
        assert len({id(item.timings) for item in found}) == 64
        assert [requests.lookups(outcome) for outcome in ("miss", "joined", "hit")] == [1, 63, 0]


async def test_a_repeat_asks_nobody_though_no_encoder_is_there() -> None:
    fleet = Fleet()
    encoders, metrics = Encoders(), Metrics()
    async with running(fleet, A, liveness_timeout=0.2) as pool:
        await until(pool.ready)
        failover = Failover(pool, cast(Attempts, encoders), 1, metrics)
        gatherer = Gatherer(failover, EmbeddingCache(2**20, metrics), cast(Receiver, None), 100, metrics)
        requests = Requests(gatherer, encoders, metrics, Spans())
        first = requests.ask(picture(1))
        await encoders.until_asked(1)
        encoders.answer()
        [before] = await first
        fleet.silent.add(A)
        await until(lambda: not pool.ready())
        [item] = await requests.ask(picture(1))
        assert item.embeds is not None
        assert before.embeds is not None
        assert torch.equal(item.embeds, before.embeds)
        with pytest.raises(EncoderUnavailable):
            await requests.ask(picture(1), picture(2, 1))
        assert len(encoders.asked) == 1


async def test_only_what_is_not_known_is_asked_for() -> None:
    async with serving(A) as requests:
        first = requests.ask(picture(1))
        await requests.encoders.until_asked(1)
        requests.encoders.answer()
        await first
        assert requests.spans.seen == [{"items": 1, "cached": 0, "attempts": 0}]
        second = requests.ask(picture(2, 0), picture(1, 1), picture(3, 2), budget=50)
        await requests.encoders.until_asked(2)
        assert [source.index for source in requests.encoders.asked[1][1].sources] == [0, 2]
        assert requests.encoders.budgets == [100, 50 - TOKENS]
        requests.encoders.answer(1)
        assert [item.content_hash for item in await second] == [f"{number:032x}" for number in (2, 1, 3)]
        assert requests.spans.seen[1] == {"items": 3, "cached": 1, "attempts": 0}


async def test_equal_pictures_of_one_request_are_asked_for_once() -> None:
    async with serving(A) as requests:
        task = requests.ask(picture(1, 0), picture(2, 1), picture(1, 2))
        await requests.encoders.until_asked(1)
        assert [source.index for source in requests.encoders.asked[0][1].sources] == [0, 1]
        requests.encoders.answer()
        assert [item.content_hash for item in await task] == [f"{number:032x}" for number in (1, 2, 1)]


async def test_an_item_is_everybodys_when_it_arrives_though_its_request_fails_later() -> None:
    async with serving(A) as requests:
        leader, follower = await requests.followed_by([picture(1), picture(2, 1)], 1)
        requests.encoders.deliver(0)
        [item] = await follower
        assert item.content_hash == f"{1:032x}"
        assert not leader.done()
        requests.encoders.fail(0, EncoderFailed("it died"))
        with pytest.raises(EncoderFailed):
            await leader
        await requests.ask(picture(1))
        assert len(requests.encoders.asked) == 1


async def test_a_leader_that_hangs_up_hurts_nobody_else() -> None:
    async with serving(A) as requests:
        leader, *followers = await requests.followed_by([picture(1)], 5)
        leader.cancel()
        await requests.encoders.until_asked(2)  # one of them has begun again, for all
        requests.encoders.answer(1)
        assert len(await asyncio.gather(*followers)) == 5
        assert leader.cancelled()


async def test_a_leader_whose_time_is_over_hurts_nobody_else() -> None:
    async with serving(A) as requests:
        leader = requests.ask(picture(1), seconds=0.05)
        await requests.encoders.until_asked(1)
        follower = requests.ask(picture(1))
        with pytest.raises(EmbeddingTimeout):
            await leader
        await requests.encoders.until_asked(2)
        requests.encoders.answer(1)
        assert len(await follower) == 1


async def test_a_follower_waits_no_longer_than_its_own_deadline() -> None:
    async with serving(A) as requests:
        [leader] = await requests.followed_by([picture(1)], 0)
        with pytest.raises(EmbeddingTimeout, match=r"1 of 1 embeddings did not arrive within 0\.05 s"):
            await requests.ask(picture(1), seconds=0.05)
        requests.encoders.answer()
        assert len(await leader) == 1


async def test_a_bad_picture_is_found_bad_once_and_each_is_told_where_it_has_it() -> None:
    async with serving(A) as requests:
        tasks = await requests.followed_by([picture(1)], 3)
        requests.encoders.fail(0, InvalidMedia("no picture", param="messages.r.0"))
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [(str(error), cast(EpdError, error).param) for error in errors] == [
            ("no picture", f"messages.{name}.0") for name in ("r", "follower-0", "follower-1", "follower-2")
        ]
        assert len(requests.encoders.asked) == 1


async def test_a_bad_picture_beside_it_is_the_leaders_own() -> None:
    async with serving(A) as requests:
        leader, *followers = await requests.followed_by([picture(1), picture(2, 1)], 3)
        requests.encoders.fail(0, InvalidMedia("no picture", param="messages.r.1"))
        await requests.encoders.until_asked(2)
        requests.encoders.answer(1)
        assert len(await asyncio.gather(*followers)) == 3
        assert isinstance(leader.exception(), InvalidMedia)


async def test_what_a_caller_calls_a_picture_does_not_make_anothers_bad() -> None:
    named = "tenant:" + "1" * 32
    async with serving(A) as requests:
        leader = requests.ask(picture(1, supplied=named))
        await requests.encoders.until_asked(1)
        follower = requests.ask(picture(2, request="follower", supplied=named))
        await settled()
        assert len(requests.encoders.asked) == 1
        requests.encoders.fail(0, InvalidMedia("cannot be reached", param="messages.r.0"))
        await requests.encoders.until_asked(2)
        requests.encoders.answer(1)
        assert [item.content_hash for item in await follower] == [named]
        assert isinstance(leader.exception(), InvalidMedia)


@pytest.mark.parametrize("error", [EncoderFailed("it died"), InvalidRequest("The pictures need 4 tokens.", param="messages")])
async def test_after_another_failure_each_asks_for_itself(error: EpdError) -> None:
    async with serving(A) as requests:
        leader, *followers = await requests.followed_by([picture(1)], 3)
        requests.encoders.fail(0, error)
        await requests.encoders.until_asked(4)
        for number in (1, 2, 3):
            requests.encoders.answer(number)
        assert len(await asyncio.gather(*followers)) == 3
        assert leader.exception() is error


async def test_where_no_encoder_is_ready_nobody_waits_for_anybody() -> None:
    async with serving() as requests:
        results = await asyncio.gather(*(requests.ask(picture(1)) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [EncoderUnavailable] * 3


@pytest.mark.parametrize("known", [False, True])
async def test_what_no_encoder_has_counted_for_a_request_must_still_fit(known: bool) -> None:
    async with serving(A) as requests:
        leader, follower = requests.ask(picture(1)), None
        await requests.encoders.until_asked(1)
        if not known:
            follower = requests.ask(picture(1), budget=TOKENS - 1)
            await settled()
        requests.encoders.answer()
        await leader
        with pytest.raises(InvalidRequest, match="need 4 tokens, but only 3 are left"):
            # What does not fit already asks for nothing more.
            await (follower or requests.ask(picture(1), picture(2, 1), budget=TOKENS - 1))
        assert len(await requests.ask(picture(1), budget=TOKENS)) == 1
        assert len(requests.encoders.asked) == 1


async def test_an_item_under_anothers_hash_is_nobodys() -> None:
    async with serving(A) as requests:
        [leader] = await requests.followed_by([picture(1)], 0)
        with pytest.raises(EmbeddingIncompatible):
            requests.encoders.deliver(0, content_hash="tenant:" + "1" * 32)
        assert requests.lookups("hit") == 0
        assert requests.metrics.registry.get_sample_value("epd_cache_items") == 0
        requests.encoders.answer()
        await leader


async def test_what_cannot_be_had_is_refused_at_once_while_nothing_is_known() -> None:
    fleet, encoders, metrics = Fleet(), Encoders(), Metrics()
    async with running(fleet, A, liveness_timeout=0.2) as pool:
        cache = EmbeddingCache(2**20, metrics)
        gatherer = Gatherer(Failover(pool, cast(Attempts, encoders), 1, metrics), cache, cast(Receiver, None), 100, metrics)
        await until(pool.ready)
        gatherer.check(1)
        fleet.silent.add(A)
        await until(lambda: not pool.ready())
        with pytest.raises(EncoderUnavailable):
            gatherer.check(1)
        item = MediaItem("image", TOKENS, embeds=torch.zeros(TOKENS, 8))
        item.set_hash("0" * 32)
        cache.keep(picture(1), item)
        gatherer.check(1)


async def test_only_so_many_wait_but_what_is_known_needs_no_waiting() -> None:
    async with serving(A, max_waiting=1) as requests:
        first = requests.ask(picture(1))
        await requests.encoders.until_asked(1)
        requests.encoders.answer()
        await first
        waiting = requests.ask(picture(2))
        await requests.encoders.until_asked(2)
        with pytest.raises(EncoderOverloaded, match="1 requests wait"):
            await requests.ask(picture(3))
        assert len(await requests.ask(picture(1))) == 1
        requests.encoders.answer(1)
        await waiting


async def test_without_a_cache_nothing_is_shared() -> None:
    async with serving(A, cache_bytes=0) as requests:
        tasks = [requests.ask(picture(1), picture(1, 1)), requests.ask(picture(1))]
        await requests.encoders.until_asked(2)
        assert [len(share.sources) for _, share in requests.encoders.asked] == [2, 1]
        requests.encoders.answer(0)
        requests.encoders.answer(1)
        await asyncio.gather(*tasks)
