"""What many want at once is computed once, and whoever leaves or fails takes nobody along."""

from __future__ import annotations

import asyncio

import pytest

from shared.errors import EncoderFailed, InvalidMedia
from shared.flight import SingleFlight


class Work:
    """Counts how often it was begun; ends when told to, with what it was told."""

    def __init__(self) -> None:
        self.begun = 0
        self.endings: list[asyncio.Future[int]] = []

    async def __call__(self) -> int:
        self.begun += 1
        ending = asyncio.get_running_loop().create_future()
        self.endings.append(ending)
        return await ending


async def callers(flights: SingleFlight[str, int], work: Work, count: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(flights.run("picture", work)) for _ in range(count)]
    await settled()
    return tasks


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_many_at_once_share_one_computation_and_later_ones_begin_another() -> None:
    joined: list[None] = []
    flights: SingleFlight[str, int] = SingleFlight(lambda: joined.append(None))
    work = Work()
    tasks = await callers(flights, work, 64)
    other = asyncio.create_task(flights.run("another picture", work))
    await settled()
    assert work.begun == 2
    work.endings[0].set_result(7)
    work.endings[1].set_result(8)
    assert await asyncio.gather(*tasks) == [7] * 64
    assert await other == 8
    assert (len(joined), len(flights)) == (63, 0)
    later = await callers(flights, work, 1)
    work.endings[2].set_result(9)
    assert await later[0] == 9


async def test_the_leaders_cancellation_hurts_nobody_else() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    tasks = await callers(flights, work, 5)
    tasks[0].cancel()
    await settled()
    assert work.begun == 2  # one of those who waited began again, for all
    assert work.endings[0].cancelled()
    work.endings[1].set_result(7)
    assert await asyncio.gather(*tasks[1:]) == [7] * 4
    assert tasks[0].cancelled()


async def test_a_followers_cancellation_hurts_nobody_else() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    tasks = await callers(flights, work, 3)
    tasks[1].cancel()
    await settled()
    work.endings[0].set_result(7)
    assert await tasks[0] == await tasks[2] == 7
    assert (work.begun, tasks[1].cancelled()) == (1, True)


async def test_bad_media_is_found_bad_once_and_each_gets_an_error_of_its_own() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    tasks = await callers(flights, work, 3)
    work.endings[0].set_exception(InvalidMedia("not a picture", param="messages.0"))
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert work.begun == 1
    assert all(isinstance(error, InvalidMedia) and error.message == "not a picture" for error in errors)
    assert len({id(error) for error in errors}) == 3
    assert [error.param for error in errors if isinstance(error, InvalidMedia)] == ["messages.0", None, None]


async def test_another_failure_is_the_leaders_own_and_the_others_try_for_themselves_at_once() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    tasks = await callers(flights, work, 4)
    work.endings[0].set_exception(EncoderFailed("its receiver is gone"))
    await settled()
    assert work.begun == 4
    for number in (1, 2, 3):
        work.endings[number].set_result(number)
    assert sorted(await asyncio.gather(*tasks[1:])) == [1, 2, 3]
    with pytest.raises(EncoderFailed):
        await tasks[0]
    assert len(flights) == 0


async def test_a_flight_lands_before_its_leader_is_done() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    with flights.lead("picture") as flight:
        following = flights.follow("picture")
        assert following is not None
        result = asyncio.create_task(following.result())
        flight.land(7)
        assert await result == 7
        assert flights.follow("picture") is None
