"""What all faults have: a target, a chance, a limit, an order, an end; and nothing that stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest

from services.encoder.faults.answers import Error
from services.encoder.faults.base import Fault, Match, Stage
from services.encoder.faults.contents import Corrupt
from services.encoder.faults.delivery import Drop, Duplicate, Late, Partial, Reorder, SlowDrip
from services.encoder.faults.kinds import KINDS
from services.encoder.faults.registry import Faults
from services.encoder.faults.stages import Delay, Hang
from shared.errors import EpdError, InvalidRequest
from tests.unit.faults.calls import Connection, call, clocked, message, passes, sent_by, setting, settled


async def test_nothing_set_is_nothing_changed() -> None:
    faults, connection = Faults(), Connection()
    assert faults.sender(call(), connection) is connection
    for stage in Stage:
        await passes(faults, stage, call())
    assert not faults.muted
    await faults.aclose()


async def test_a_seed_makes_chance_repeatable() -> None:
    def fault(seed: int | None) -> Drop:
        return Drop(probability=0.3, seed=seed)

    async def kept(fault: Drop) -> list[int]:
        return (await sent_by(setting(fault), call(200))).items

    first, again, other = fault(1), fault(1), fault(2)
    items = await kept(first)
    assert items == await kept(again)
    assert items != await kept(other)
    assert first.fired == 200 - len(items)
    assert 30 <= first.fired <= 90
    assert await kept(Drop(probability=0.0)) == list(range(200))


async def test_count_limits_how_often_it_fires() -> None:
    fault = Drop(count=2)
    assert (await sent_by(setting(fault), call(5))).items == [2, 3, 4]
    assert fault.fired == 2


async def test_a_decision_for_a_call_is_made_once() -> None:
    fault = Partial(k=0, probability=0.5, seed=0)
    kept = {len((await sent_by(setting(fault), call(8))).items) for _ in range(20)}
    assert kept == {0, 8}
    assert 0 < fault.fired < 20


async def test_modality_aims_at_items_and_at_calls_that_have_such_items() -> None:
    drop, error = Drop(match=Match(modality="video")), Error(match=Match(modality="video"))
    assert (await sent_by(setting(drop), call())).items == [0]
    assert (await sent_by(setting(drop), call(modality="video"))).items == []
    await passes(setting(error), Stage.ADMIT, call())
    with pytest.raises(Exception, match="answer 500"):
        await passes(setting(error), Stage.ADMIT, call(modality="video"))


@pytest.mark.parametrize(
    ("patterns", "headers", "hit"),
    [
        ({"x-request-id": "victim*"}, {"x_request_id": "victim-1"}, True),
        ({"X-Request-Id": "victim*"}, {"x_request_id": "victim-1"}, True),
        ({"x-request-id": "victim*"}, {"x_request_id": "bystander"}, False),
        ({"x-request-id": "victim*"}, {"x_request_id": "Victim-1"}, False),
        ({"x-request-id": "*"}, {}, False),
        ({"x-request-id": "victim*", "x-b": "1"}, {"x_request_id": "victim-1"}, False),
        ({"x-request-id": "victim*", "x-b": "1"}, {"x_request_id": "victim-1", "x_b": "1"}, True),
    ],
)
async def test_headers_aim_at_calls(patterns: dict[str, str], headers: dict[str, str], hit: bool) -> None:
    fault = Drop(match=Match(headers=patterns))
    connection = await sent_by(setting(fault), call(**headers))
    assert connection.items == ([] if hit else [0])
    assert fault.fired == int(hit)


async def test_faults_happen_in_the_order_in_which_they_were_set(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = clocked(monkeypatch)
    delay, error = Delay(at=Stage.ADMIT, seconds=3), Error()
    with pytest.raises(Exception, match="answer 500"):
        await passes(setting(delay, error), Stage.ADMIT, call())
    assert waits == [3]
    with pytest.raises(Exception, match="answer 500"):
        await passes(setting(error, delay), Stage.ADMIT, call())
    assert waits == [3]


async def test_copies_of_a_corrupted_message_are_the_same_and_corrupted_copies_are_not() -> None:
    healthy = (await sent_by(Faults(), call())).frames[0]
    same = (await sent_by(setting(Corrupt(bits=20, seed=0), Duplicate()), call())).frames
    assert len(same) == 2
    assert same[0][1:] == same[1][1:] != healthy[1:]
    different = (await sent_by(setting(Duplicate(), Corrupt(bits=20, seed=0)), call())).frames
    assert len(different) == 2
    assert different[0][1:] != different[1][1:]
    assert healthy[1:] not in (different[0][1:], different[1][1:])


async def test_a_reordered_call_counts_no_copy_as_an_item() -> None:
    assert (await sent_by(setting(Duplicate(), Reorder()), call(3))).items == [2, 1, 1, 0, 0, 2]
    assert (await sent_by(setting(Reorder(), Partial(k=2)), call(3))).items == [1, 0]


async def test_a_cleared_fault_is_over_even_for_calls_that_have_begun() -> None:
    faults = setting(Drop(), Duplicate())
    connection = Connection()
    send = faults.sender(call(), connection)
    cleared = await faults.clear()
    assert list(cleared) == ["fault-1", "fault-2"]
    assert not faults.faults
    await send(message())
    assert connection.items == [0]


async def test_only_the_fault_that_is_removed_ends() -> None:
    faults = setting(Duplicate(), Drop())
    assert isinstance(await faults.remove("fault-2"), Drop)
    assert (await sent_by(faults, call())).items == [0, 0]
    with pytest.raises(KeyError):
        await faults.remove("fault-2")


async def test_the_number_of_faults_is_bounded() -> None:
    faults = setting(*(Drop() for _ in range(63)))
    with pytest.raises(InvalidRequest, match="At most 64"):
        faults.add([Drop(), Drop()])
    assert len(faults.faults) == 63
    faults.add([Drop()])
    assert list(faults.faults)[-1] == "fault-64"


def parameters(kind: type[Fault]) -> dict[str, Any]:
    """The least that a kind needs; nothing in it takes time."""
    needed = {"seconds": 0.0, "k": 1}
    return {name: needed[name] for name, field in kind.model_fields.items() if field.is_required() and name != "kind"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.model_fields["kind"].default != "crash"])
async def test_nothing_of_a_call_stays_and_nothing_of_the_encoders_is_changed(kind: type[Fault]) -> None:
    fault = kind(**parameters(kind))
    faults, connection, one = setting(fault), Connection(), call(2)
    if isinstance(fault, Hang):
        await fault.clear()
    send = faults.sender(one, connection)
    messages = [message(0), message(1)]
    with contextlib.suppress(EpdError):
        for stage in Stage:
            await passes(faults, stage, one)
        await asyncio.gather(*(send(each) for each in messages))
    await fault.clear()
    for item, each in enumerate(messages):
        untouched = message(item)
        assert each.header == untouched.header
        assert each.manglers == []
        assert list(each.tensors) == list(untouched.tensors)
        assert all(each.tensors[name].equal(tensor) for name, tensor in untouched.tensors.items())
    gone = weakref.ref(one)
    connection.sent.clear()
    connection.frames.clear()
    del one, send
    await settled()
    gc.collect()
    assert gone() is None
    for state in (fault.__pydantic_private__ or {}).values():
        if isinstance(state, (weakref.WeakKeyDictionary, set)):
            assert len(state) == 0


async def test_messages_held_back_go_with_their_call() -> None:
    fault = Reorder()
    one, held = call(2), message(0)
    await setting(fault).sender(one, Connection())(held)
    gone = weakref.ref(held)
    del one, held
    gc.collect()
    assert gone() is None


async def test_clearing_lets_go_of_everything_at_once() -> None:
    faults = setting(Hang(), Delay(seconds=3600, at=Stage.HASHED), SlowDrip(seconds=3600), Late(seconds=3600))
    hung, slow, dripping, connection = call(), call(), call(2), Connection()
    send = faults.sender(dripping, connection)
    tasks = [
        asyncio.create_task(work)
        for work in (
            passes(faults, Stage.FETCH, hung),
            passes(faults, Stage.HASHED, slow),
            send(message(0)),
            send(message(1)),
        )
    ]
    await settled()
    assert [task.done() for task in tasks] == [False, False, True, False]
    assert faults.muted
    assert connection.items == []
    await faults.clear()
    assert not faults.muted
    await asyncio.wait_for(asyncio.gather(*tasks), 1)
    assert sorted(connection.items) == [0, 1]
