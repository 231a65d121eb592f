"""Calls take turns, whatever comes and goes; and no permit is ever lost."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.encoder.fair import FairGate, FairQueue
from services.encoder.threads import FairThreads


class Queue(RuleBasedStateMachine):
    """Beside the queue runs a model: what waits of each call, and how many others were served since its last turn."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.waiting: dict[int, list[int]] = defaultdict(list)
        self.others_served: dict[int, set[int]] = {}
        self.number = 0

    @rule(call=st.integers(0, 3))
    def push(self, call: int) -> None:
        if not self.waiting[call]:
            self.others_served[call] = set()
        self.queue.push(call, self.number)
        self.waiting[call].append(self.number)
        self.number += 1

    @precondition(lambda self: len(self.queue) > 0)
    @rule()
    def pop(self) -> None:
        value = self.queue.peek()
        assert self.queue.pop() == value
        [call] = [call for call, values in self.waiting.items() if value in values]
        assert self.waiting[call].pop(0) == value, "within a call, first come is first served"
        for other, values in self.waiting.items():
            if other != call and values:
                assert call not in self.others_served[other], "nobody has a second turn while another waits for a first"
                self.others_served[other].add(call)
        self.others_served[call] = set()

    @precondition(lambda self: len(self.queue) > 0)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from([call for call, values in self.waiting.items() if values]))
        value = data.draw(st.sampled_from(self.waiting[call]))
        assert self.queue.remove(call, value)
        assert not self.queue.remove(call, value)
        self.waiting[call].remove(value)

    @invariant()
    def holds_what_waits(self) -> None:
        everything = [value for values in self.waiting.values() for value in values]
        assert sorted(self.queue) == sorted(everything)
        assert len(self.queue) == len(everything)


TestQueue = Queue.TestCase


@given(many=st.integers(1, 40), calls=st.integers(1, 5))
def test_one_item_waits_for_one_of_each_other_call(many: int, calls: int) -> None:
    queue: FairQueue[str] = FairQueue()
    for call in range(calls):
        for _ in range(many):
            queue.push(call, "one of many")
    queue.push("small", "alone")
    served = [queue.pop() for _ in range(calls + 1)]
    assert served[-1] == "alone"


async def waiting_for(gate: FairGate, call: str, served: list[str]) -> asyncio.Task[None]:
    async def enter() -> None:
        await gate.acquire(call)
        served.append(call)

    task = asyncio.create_task(enter())
    await asyncio.sleep(0)
    return task


async def test_a_gate_lets_calls_through_in_turn() -> None:
    gate, served = FairGate(1), list[str]()
    await gate.acquire("first")
    tasks = [await waiting_for(gate, call, served) for call in ("a", "a", "a", "b")]
    for _ in tasks:
        gate.release()
    await asyncio.gather(*tasks)
    assert served == ["a", "b", "a", "a"]


async def assert_whole(gate: FairGate, permits: int) -> None:
    """All permits are there, and no more."""
    for _ in range(permits):
        await asyncio.wait_for(gate.acquire("whole"), 1)
    extra = asyncio.create_task(gate.acquire("extra"))
    await asyncio.sleep(0)
    assert not extra.done()
    extra.cancel()
    await asyncio.gather(extra, return_exceptions=True)


async def test_who_leaves_while_waiting_takes_no_permit() -> None:
    gate, served = FairGate(1), list[str]()
    await gate.acquire("first")
    leaving, staying = [await waiting_for(gate, call, served) for call in ("a", "b")]
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    gate.release()
    await asyncio.wait_for(staying, 1)
    gate.release()
    assert served == ["b"]
    await assert_whole(gate, 1)


@pytest.mark.parametrize("order", ["granted, then cancelled", "cancelled, then granted"])
async def test_a_permit_that_comes_with_the_cancellation_goes_on(order: str) -> None:
    gate, served = FairGate(1), list[str]()
    await gate.acquire("first")
    leaving, staying = [await waiting_for(gate, call, served) for call in ("a", "b")]
    steps: list[Callable[[], object]] = [gate.release, leaving.cancel]
    for step in steps if order.startswith("granted") else reversed(steps):
        step()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.wait_for(staying, 1)
    gate.release()
    assert served == ["b"]
    await assert_whole(gate, 1)


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "release", "turn of the loop"]), st.integers(0, 5)), max_size=40))
def test_no_history_loses_a_permit(history: list[tuple[str, int]]) -> None:
    async def play() -> None:
        gate = FairGate(2)
        tasks: list[asyncio.Task[None]] = []
        for what, which in history:
            inside = [task for task in tasks if task.done() and not task.cancelled()]
            if what == "enter":
                tasks.append(asyncio.create_task(gate.acquire(which)))
            elif what == "leave" and tasks:
                # One that is inside is not affected.
                tasks[which % len(tasks)].cancel()
            elif what == "release" and inside:
                tasks.remove(inside[0])
                gate.release()
            else:
                await asyncio.sleep(0)
            assert sum(task.done() and not task.cancelled() for task in tasks) <= 2
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if result is None:
                gate.release()
        await assert_whole(gate, 2)

    asyncio.run(play())


async def test_a_cancelled_thread_keeps_its_place_until_it_is_done() -> None:
    threads, begun, free = FairThreads(1), threading.Event(), threading.Event()
    try:

        def hold() -> None:
            begun.set()
            assert free.wait(5)

        async def in_turn(call: str, work: Callable[..., None], *arguments: str) -> None:
            async with threads.turn(call) as turn:
                await turn.run(work, *arguments)

        held = asyncio.create_task(in_turn("a", hold))
        assert await asyncio.to_thread(begun.wait, 5)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        ran: list[str] = []
        following = [asyncio.create_task(in_turn(call, ran.append, call)) for call in ("b", "b", "b", "c")]
        leaving = asyncio.create_task(in_turn("d", ran.append, "d"))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert ran == []
        free.set()
        await asyncio.wait_for(asyncio.gather(*following), 5)
        # One was in line behind the thread; had the cancelled one's place been given away, a second would have been.
        assert ran == ["b", "b", "c", "b"]
    finally:
        free.set()
        threads.close()
