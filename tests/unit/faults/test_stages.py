"""Faults at a stage: the process dies, stops, or dawdles there."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys

import pytest

from services.encoder.faults import stages
from services.encoder.faults.base import Stage
from services.encoder.faults.kinds import read_faults
from services.encoder.faults.stages import Crash, Delay, Hang
from tests.processes import ROOT
from tests.unit.faults.calls import Connection, call, clocked, message, passes, setting, settled


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one when the process would have died."""
    noted: list[str] = []
    monkeypatch.setattr(stages, "die", lambda: noted.append("dead"))
    return noted


@pytest.mark.parametrize("at", [Stage.ADMIT, Stage.FETCH, Stage.HASHED])
async def test_crash_kills_at_its_stage_only(at: Stage, deaths: list[str]) -> None:
    fault = Crash(at=at)
    faults = setting(fault)
    for stage in Stage:
        before = len(deaths)
        await passes(faults, stage, call())
        assert (len(deaths) > before) is (stage is at)
    await faults.sender(call(), Connection())(message())
    assert len(deaths) == fault.fired == 1


async def test_crash_in_the_middle_of_publishing_comes_after_the_first_message(deaths: list[str]) -> None:
    faults, connection, one = setting(Crash(at=Stage.PUBLISH)), Connection(), call(2)
    await passes(faults, Stage.PUBLISH, one)
    assert deaths == []
    await faults.sender(one, connection)(message(0))
    assert deaths == ["dead"]
    assert connection.items == [0]


def test_crash_really_is_a_kill() -> None:
    code = "from services.encoder.faults.stages import die; die()"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize("at", list(Stage))
async def test_hang_holds_its_stage_up_and_mutes_until_it_is_cleared(at: Stage) -> None:
    faults = setting(Hang(at=at))
    for stage in set(Stage) - {at}:
        await passes(faults, stage, call())
    assert not faults.muted
    hanging = asyncio.create_task(passes(faults, at, call()))
    await settled()
    assert not hanging.done()
    assert faults.muted
    await faults.clear()
    assert not faults.muted
    await asyncio.wait_for(hanging, 1)


async def test_hang_ends_after_its_seconds() -> None:
    faults = setting(Hang(seconds=0.02))
    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(passes(faults, Stage.FETCH, call()), 1)
    assert asyncio.get_running_loop().time() - began >= 0.019
    assert not faults.muted


async def test_a_call_that_is_cancelled_while_it_hangs_unmutes() -> None:
    fault = Hang()
    faults = setting(fault)
    hanging = [asyncio.create_task(passes(faults, Stage.FETCH, call())) for _ in range(2)]
    await settled()
    for task, muted in zip(hanging, (True, False), strict=True):
        assert faults.muted
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert faults.muted is muted
    assert fault.fired == 2


async def test_a_deadline_around_a_hang_is_not_swallowed() -> None:
    faults = setting(Hang())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await passes(faults, Stage.FETCH, call())
    assert not faults.muted


async def test_delay_waits_within_its_jitter_and_does_not_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = clocked(monkeypatch)
    faults = setting(Delay(seconds=2, at=Stage.HASHED), Delay(seconds=1, jitter=0.5, seed=0, at=Stage.FETCH))
    await passes(faults, Stage.HASHED, call())
    assert waits == [2]
    for _ in range(50):
        await passes(faults, Stage.FETCH, call())
    jittered = [seconds for seconds in waits[1:] if seconds is not None]
    assert len(set(jittered)) == 50
    assert 1 <= min(jittered) < 1.1
    assert 1.4 < max(jittered) <= 1.5


async def test_delay_goes_on_after_its_seconds() -> None:
    faults = setting(Delay(seconds=0.02))
    began = asyncio.get_running_loop().time()
    delayed = asyncio.create_task(passes(faults, Stage.FETCH, call()))
    await settled()
    assert not delayed.done()
    assert not faults.muted
    await asyncio.wait_for(delayed, 1)
    assert asyncio.get_running_loop().time() - began >= 0.019


def test_hash_is_another_name_of_a_stage() -> None:
    (fault,) = read_faults(b'{"kind": "crash", "at": "hash"}')
    assert isinstance(fault, Crash)
    assert fault.at is Stage.HASHED
