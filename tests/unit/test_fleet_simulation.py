"""Many encoders die at once under load: nothing is asked for more often than it may be, and every request has an end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.simulation import RETRIES, Life, Load, Options, encoders_of, simulation, until, until_ready

OPTIONS = Options(liveness_timeout=1.0)


@pytest.mark.parametrize("ways", [(Life.KILLED,), (Life.CUT_OFF,), (Life.KILLED, Life.CUT_OFF)])
async def test_a_storm_of_failures_is_bounded_and_passes(ways: Sequence[Life]) -> None:
    async with simulation(encoders_of(20, seconds=0.1), OPTIONS) as service:
        await until_ready(service, 20)
        load = Load(service, rate=40.0, items=3, timeout=60.0)
        running = asyncio.create_task(load.run(2.0))
        await until(lambda: load.began > 20)
        for index, encoder in enumerate(list(service.fleet.encoders.values())[:6]):
            service.fleet.end(encoder, ways[index % len(ways)])
        await running
        codes = Counter(each.code for each in load.ended)
        assert codes.total() == load.began
        assert codes["ok"] > 0
        assert set(codes) <= {"ok", "503 encoder_failed", "503 encoder_lost"}
        assert max(service.fleet.asked.values()) == 1 + RETRIES
        assert service.fleet.refusals == 0
        assert [view.in_flight for view in service.pool.describe()] == [0] * 20
        await until_ready(service, 14)
        after = Load(service, rate=40.0, items=3, timeout=60.0)
        await after.run(1.0)
        assert {each.code for each in after.ended} == {"ok"}


async def test_where_all_die_every_request_ends_with_a_reason() -> None:
    async with simulation(encoders_of(10, seconds=0.1), OPTIONS) as service:
        await until_ready(service, 10)
        load = Load(service, rate=40.0, items=3, timeout=60.0)
        running = asyncio.create_task(load.run(2.0))
        await until(lambda: load.began > 20)
        for encoder in service.fleet.encoders.values():
            service.fleet.end(encoder, Life.CUT_OFF)
        await running
        assert len(load.ended) == load.began
        assert {each.code for each in load.ended} <= {
            "ok",
            *(f"503 encoder_{why}" for why in ("lost", "overloaded", "unavailable")),
        }
        assert max(service.fleet.asked.values()) <= 1 + RETRIES


async def test_no_encoder_gets_much_more_than_the_others() -> None:
    async with simulation(encoders_of(20, seconds=60.0), OPTIONS) as service:
        await until_ready(service, 20)
        load = Load(service, rate=1000.0, items=1, timeout=60.0)
        running = asyncio.create_task(load.run(60.0))
        await until(lambda: load.began >= 60)
        running.cancel()
        loads = [view.in_flight for view in service.pool.describe()]
        assert max(loads) <= 1.25 * (sum(loads) + 1) / 20 + 1
