"""Faults in the delivery of messages."""

from __future__ import annotations

import asyncio

import pytest

from services.encoder.faults import delivery
from services.encoder.faults.base import Fault
from services.encoder.faults.delivery import Drop, Duplicate, Late, Partial, Reorder, SlowDrip
from shared.errors import EncoderFailed
from tests.unit.faults.calls import Connection, call, clocked, message, sent_by, setting, settled


async def test_drop_sends_nothing() -> None:
    fault = Drop()
    assert (await sent_by(setting(fault), call(3))).items == []
    assert fault.fired == 3


@pytest.mark.parametrize(("k", "items", "fired"), [(0, [], 1), (2, [0, 1], 1), (3, [0, 1, 2], 0)])
async def test_partial_sends_the_first_items(k: int, items: list[int], fired: int) -> None:
    fault = Partial(k=k)
    assert (await sent_by(setting(fault), call(3))).items == items
    assert fault.fired == fired


async def test_duplicate_sends_again() -> None:
    assert (await sent_by(setting(Duplicate()), call(2))).items == [0, 0, 1, 1]
    assert (await sent_by(setting(Duplicate(times=3)), call())).items == [0, 0, 0]


async def test_reorder_sends_in_reverse_when_the_last_is_there() -> None:
    connection, one = Connection(), call(3)
    send = setting(Reorder()).sender(one, connection)
    await send(message(1))
    await send(message(0))
    assert connection.items == []
    await send(message(2))
    assert connection.items == [2, 0, 1]


async def test_reorder_holds_across_senders_of_one_call_and_apart_for_two() -> None:
    faults, first, second, connection = setting(Reorder()), call(2), call(2), Connection()
    for one, item in ((first, 0), (second, 0), (first, 1)):
        await faults.sender(one, connection)(message(item))
    assert connection.items == [1, 0]


async def test_late_lets_the_call_end_before_the_message_goes_out() -> None:
    fault, connection = Late(seconds=0.02), Connection()
    await setting(fault).sender(call(), connection)(message())
    await settled()
    assert connection.items == []
    (task,) = fault._tasks
    await asyncio.wait_for(task, 1)
    assert connection.items == [0]


async def test_late_messages_end_with_the_encoder() -> None:
    fault, connection = Late(seconds=3600), Connection()
    faults = setting(fault)
    await faults.sender(call(2), connection)(message())
    await settled()
    await faults.aclose()
    assert not fault._tasks
    assert connection.items == []


async def test_late_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_MAX_LATE", 2)
    fault = Late(seconds=3600)
    faults = setting(fault)
    connection = await sent_by(faults, call(3))
    assert connection.items == [2]
    assert fault.fired == 2
    await faults.aclose()


async def test_a_late_message_that_cannot_be_sent_harms_nobody() -> None:
    async def gone(_: object) -> None:
        raise EncoderFailed("No receiver.")

    fault = Late(seconds=0)
    await setting(fault).sender(call(), gone)(message())
    (task,) = fault._tasks
    await asyncio.wait_for(task, 1)


async def test_slow_drip_waits_between_the_messages_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = clocked(monkeypatch)
    faults = setting(SlowDrip(seconds=5))
    for _ in range(2):
        assert (await sent_by(faults, call(3))).items == [0, 1, 2]
    assert waits == [5, 5, 5, 5]


async def test_slow_drip_lets_one_through_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[asyncio.Event] = []

    async def pause(_: Fault, __: float | None) -> None:
        waits.append(asyncio.Event())
        await waits[-1].wait()

    monkeypatch.setattr(Fault, "pause", pause)
    connection = Connection()
    send = setting(SlowDrip(seconds=5)).sender(call(4), connection)
    tasks = [asyncio.create_task(send(message(item))) for item in range(4)]
    await settled()
    assert (connection.items, len(waits)) == ([0], 1)
    waits[0].set()
    await settled()
    assert (connection.items, len(waits)) == ([0, 1], 2)
    tasks[2].cancel()
    await settled()
    assert (connection.items, len(waits)) == ([0, 1], 3)
    waits[2].set()
    await asyncio.wait(tasks, timeout=1)
    assert connection.items == [0, 1, 3]
