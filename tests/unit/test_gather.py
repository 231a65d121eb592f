"""Failover: what moves, what does not, how often, and that nothing is held afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from services.language.deadline import Deadline
from services.language.embeddings.attempt import Attempts
from services.language.embeddings.cache import EmbeddingCache
from services.language.embeddings.encoder import Share
from services.language.embeddings.failover import Failover
from services.language.embeddings.gather import Gatherer
from services.language.embeddings.job import Job
from services.language.embeddings.receiver import Holding, Receiver
from shared.errors import (
    EmbeddingCorrupt,
    EmbeddingIncompatible,
    EmbeddingIncomplete,
    EmbeddingTimeout,
    EncoderFailed,
    EncoderLost,
    EncoderOverloaded,
    EncoderUnavailable,
    EngineOverloaded,
    EpdError,
    InternalError,
    InvalidMedia,
)
from shared.identity import MediaItem
from shared.telemetry import Metrics
from tests.unit.test_pool import Fleet, running, sources, until

URLS = [f"http://{letter}{number}:1" for number in range(8) for letter in "abcd"]
Script = Callable[[Job, Share], Awaitable[None]]


class Scripted:
    """Stands for attempts: what each does, by encoder."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[str, list[int]]] = []

    async def run(self, job: Job, share: Share) -> None:
        self.asked.append((share.encoder.url, [source.index for source in share.sources]))
        await self.script(job, share)


def deliver(job: Job, share: Share, number: int | None = None) -> None:
    for source in share.sources[:number]:
        item = MediaItem("image", source.index)
        item.set_hash(f"{source.index:032x}")
        job.arrived(source.index, item)


async def gather(
    script: Script, encoders: int = 2, items: int = 1, retries: int = 1, seconds: float = 5.0, own: bool = True
) -> tuple[list[tuple[str, list[int]]], list[int] | EpdError, list[Any]]:
    """What was asked, what came of it (numbers of items, or the error), and the encoders afterwards."""
    attempts, metrics = Scripted(script), Metrics()
    fleet = Fleet(ids={url: url[7:9] for url in URLS})
    async with running(fleet, *URLS[:encoders], liveness_timeout=2.0) as pool:
        await until(lambda: pool.ready() == encoders)
        failover = Failover(pool, cast(Attempts, attempts), retries, metrics)
        gatherer = Gatherer(failover, EmbeddingCache(0, metrics), cast(Receiver, None), 100, metrics)
        try:
            found = await gatherer.gather("r", sources(items), 100, Deadline(seconds, own), {}, Holding())
            result: list[int] | EpdError = [item.num_tokens for item in found]
        except EpdError as error:
            result = error
        assert [view.in_flight for view in pool.describe()] == [0] * encoders
        return attempts.asked, result, pool.describe()


async def works(job: Job, share: Share) -> None:
    deliver(job, share)


def first_fails_with(error: EpdError, delivering: int = 0) -> Script:
    failed: list[str] = []

    async def script(job: Job, share: Share) -> None:
        if not failed:
            failed.append(share.encoder.url)
            deliver(job, share, delivering)
            raise error
        deliver(job, share)

    return script


def always(error: EpdError) -> Script:
    async def script(job: Job, share: Share) -> None:
        raise error

    return script


async def test_all_items_come_in_order_from_several_encoders() -> None:
    asked, result, _ = await gather(works, encoders=4, items=12)
    assert result == list(range(12))
    assert len(asked) == len({url for url, _ in asked}) > 1
    assert sorted(index for _, indices in asked for index in indices) == list(range(12))


@pytest.mark.parametrize(
    "kind", [EncoderFailed, EncoderLost, EmbeddingIncomplete, EmbeddingCorrupt, EmbeddingIncompatible, EncoderOverloaded]
)
async def test_a_failure_of_the_server_moves_the_item_to_another_encoder(kind: type[EpdError]) -> None:
    asked, result, views = await gather(first_fails_with(kind("why")))
    assert result == [0]
    assert len({url for url, _ in asked}) == len(asked) == 2
    assert sum(sum(view.failures.values()) for view in views) == 1


async def test_only_what_is_missing_moves() -> None:
    asked, result, _ = await gather(first_fails_with(EncoderFailed("why"), delivering=1), encoders=2, items=4)
    moved = [indices for _, indices in asked[2:]]
    assert result == list(range(4))
    assert len(moved) == 1
    assert set(moved[0]) == set(asked[0][1][1:])


@pytest.mark.parametrize("kind", [InvalidMedia, InternalError, EngineOverloaded, EmbeddingTimeout])
async def test_neither_the_clients_fault_nor_our_own_moves(kind: type[EpdError]) -> None:
    asked, result, _ = await gather(always(kind("why")))
    assert isinstance(result, kind)
    assert len(asked) == 1


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_it_ends_when_retries_do(retries: int) -> None:
    asked, result, _ = await gather(always(EncoderFailed("why")), encoders=4, retries=retries)
    assert isinstance(result, EncoderFailed)
    assert len(asked) == retries + 1


async def test_refusals_for_load_cost_no_retry_and_end_when_everybody_refused() -> None:
    asked, result, views = await gather(always(EncoderOverloaded("full")), encoders=4, retries=1)
    assert isinstance(result, EncoderOverloaded)
    assert len({url for url, _ in asked}) == len(asked) == 4
    assert {view.circuit for view in views} == {"closed"}


async def test_a_large_fleet_that_refuses_is_not_asked_one_by_one() -> None:
    asked, result, _ = await gather(always(EncoderOverloaded("full")), encoders=30, retries=1)
    assert isinstance(result, EncoderOverloaded)
    assert len({url for url, _ in asked}) == len(asked) == 18


async def test_an_encoder_that_drains_hands_over() -> None:
    asked, result, _ = await gather(first_fails_with(EncoderUnavailable("The encoder is draining.")), retries=0)
    assert result == [0]
    assert len(asked) == 2


async def test_where_there_is_no_other_encoder_the_failure_is_told_as_it_was() -> None:
    asked, result, _ = await gather(always(EncoderFailed("broke")), encoders=1)
    assert (str(result), len(asked)) == ("broke", 1)


async def test_the_deadline_ends_it_and_names_what_is_missing() -> None:
    async def half(job: Job, share: Share) -> None:
        deliver(job, share, 1)
        await asyncio.Event().wait()

    _, result, views = await gather(half, encoders=1, items=3, seconds=0.05)
    assert isinstance(result, EmbeddingTimeout)
    assert "2 of 3" in str(result)
    assert views[0].failures == {"embedding_timeout": 1}


async def test_a_deadline_that_the_caller_wished_for_is_not_held_against_the_encoder() -> None:
    async def never(job: Job, share: Share) -> None:
        await asyncio.Event().wait()

    _, result, views = await gather(never, encoders=1, seconds=0.05, own=False)
    assert isinstance(result, EmbeddingTimeout)
    assert views[0].failures == {}


async def test_a_clients_error_in_one_share_ends_the_others() -> None:
    ended: list[str] = []

    async def one_is_bad(job: Job, share: Share) -> None:
        if not ended and 0 in [source.index for source in share.sources]:
            raise InvalidMedia("broken")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(share.encoder.url)

    asked, result, views = await gather(one_is_bad, encoders=4, items=12)
    assert isinstance(result, InvalidMedia)
    assert len(ended) == len(asked) - 1
    assert all(view.failures == {} for view in views)


async def test_a_caller_that_leaves_takes_all_attempts_along() -> None:
    began = asyncio.Event()

    async def never(job: Job, share: Share) -> None:
        began.set()
        await asyncio.Event().wait()

    work = asyncio.create_task(gather(never, encoders=2, items=4))
    await began.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
