"""Queues in formulas: exact where theory is, near a simulation where it is not, and never better under more load."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.loadtest.capacity.delay import Delay, Wait, percentile, step_of
from services.loadtest.capacity.inputs import Encoder, Inputs, Traffic
from services.loadtest.capacity.queueing import (
    batch_latency,
    erlang_c,
    group_wait,
    queue_wait,
    shared_line,
    split_share,
)
from services.loadtest.capacity.stages import encoding

LOADS = st.floats(0.01, 0.98)


@given(LOADS)
def test_one_server_is_exact(load: float) -> None:
    """M/M/1 and M/D/1, by Pollaczek and Khinchine."""
    assert queue_wait(1, load, 1.0) == pytest.approx(load / (1 - load))
    assert queue_wait(1, load, 1.0, 0.0) == pytest.approx(load / (1 - load) / 2)
    assert queue_wait(1, load / 5, 5.0) == pytest.approx(5 * load / (1 - load)), "times scale"


@given(st.integers(2, 6), LOADS)
def test_several_servers_are_exact(servers: int, load: float) -> None:
    """M/M/c, by its states' probabilities added up."""
    offered = servers * load
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    assert erlang_c(servers, offered) == pytest.approx(last / (sum(terms) + last))
    waiting = erlang_c(servers, offered) * load / (1 - load)
    assert queue_wait(servers, offered, 1.0) * offered == pytest.approx(waiting), "Little's law"


def test_a_table_of_erlangs() -> None:
    """C(2, 1) is 1/3; of 10 servers at 8 it is 0.409, as printed tables have it."""
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.409, abs=5e-4)
    assert erlang_c(1000, 900.0) < 1e-2, "no overflow"


@pytest.mark.parametrize("queue", [queue_wait, lambda *a: batch_latency(a[1], 0.0, a[2], 1), lambda *a: shared_line(*a[1:])])
@pytest.mark.parametrize("rate", [1.0, 1.5])
def test_as_much_as_can_be_done_waits_for_ever(queue: Callable[[int, float, float], float], rate: float) -> None:
    assert queue(1, rate, 1.0) == math.inf


@given(LOADS)
def test_batches_of_one_are_no_batches(load: float) -> None:
    assert batch_latency(load, 0.3, 0.7, 1) == pytest.approx(1 + queue_wait(1, load, 1.0, 0.0))


@given(st.floats(0, 0.95), st.integers(1, 64))
def test_without_load_there_is_only_the_service(gain: float, most: int) -> None:
    assert batch_latency(1e-9, gain, 1 - gain, most) == pytest.approx(1.0, rel=1e-6)


@given(st.floats(0, 0.95), st.integers(1, 64), LOADS, LOADS)
def test_more_load_never_waits_less(gain: float, most: int, one: float, other: float) -> None:
    less, more = (load * most / (gain + most * (1 - gain)) for load in sorted((one, other)))
    assert batch_latency(less, gain, 1 - gain, most) <= batch_latency(more, gain, 1 - gain, most) * (1 + 1e-9)


@given(LOADS)
def test_a_line_is_shared(load: float) -> None:
    assert shared_line(load, 1.0) == pytest.approx(1 / (1 - load))


def test_groups_wait_for_each_other() -> None:
    """Two at a time to a server that is else idle: one of the two waits for the other."""
    assert group_wait(1e-9, 1.0, 2.0, 2.0) == pytest.approx(0.5)
    assert group_wait(0.5, 1.0, 1.0, 0.0) == 0.0
    assert group_wait(0.5, 1.0, 0.0, 0.0) == 0.0


def simulated(encoders: int, rate: float, gain: float, most: int, count: int = 50_000) -> float:
    """The mean time in encoders that take all that wait as a batch, and that are chosen as language services do: the first by
    preference of those that have less than 1.25 times their share."""
    rng = random.Random(7)
    waiting: list[list[float]] = [[] for _ in range(encoders)]
    served: list[list[float]] = [[] for _ in range(encoders)]
    ends: list[tuple[float, int]] = []
    times: list[float] = []
    arrival = rng.expovariate(rate)

    def begin(encoder: int, at: float) -> None:
        served[encoder], waiting[encoder] = waiting[encoder][:most], waiting[encoder][most:]
        heapq.heappush(ends, (at + gain + len(served[encoder]) * (1 - gain), encoder))

    while len(times) < count:
        if ends and ends[0][0] < arrival:
            at, encoder = heapq.heappop(ends)
            times += [at - came for came in served[encoder]]
            served[encoder] = []
            if waiting[encoder]:
                begin(encoder, at)
            continue
        loads = [len(some) + len(others) for some, others in zip(waiting, served, strict=True)]
        bound = math.ceil(1.25 * (1 + sum(loads)) / encoders)
        encoder = rng.choice([index for index, load in enumerate(loads) if load < bound])
        waiting[encoder].append(arrival)
        if not served[encoder]:
            begin(encoder, arrival)
        arrival += rng.expovariate(rate)
    return sum(times[count // 10 :]) / (count - count // 10)


@pytest.mark.parametrize("gain", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("encoders", [1, 2, 3, 8])
@pytest.mark.parametrize("load", [0.3, 0.75])
def test_encoders_are_as_simulated(gain: float, encoders: int, load: float) -> None:
    """The formulas that ``stages.encoding`` puts together, against a simulation of batches and of the choice."""
    rate = load * encoders * 16 / (gain + 16 * (1 - gain))
    inputs = Inputs(traffic=Traffic(rate=rate), encoder=Encoder(seconds=1.0, batch_gain=gain))
    found = encoding(inputs, encoders)
    assert found.seconds + found.wait.mean == pytest.approx(simulated(encoders, rate, gain, 16), rel=0.2)
    assert found.utilisation == pytest.approx(load)


def test_balance_is_worth_less_where_batches_gain() -> None:
    assert split_share(2, 0.0) > split_share(32, 0.0)
    assert split_share(8, 0.5) > split_share(8, 0.0)
    assert split_share(2, 1.0) == 1.0


@given(st.floats(0.01, 100), st.floats(0.05, 1))
def test_a_wait_is_exponential_where_there_is_one(mean: float, chance: float) -> None:
    wait = Wait(mean, chance)
    delay = Delay.of(1.0, [wait], step_of(1.0, [wait]))
    assert delay.mean == pytest.approx(1 + mean, rel=0.02)
    expected = max(0.0, wait.longest * math.log(chance / 0.05))
    assert delay.percentile(0.95) == pytest.approx(1 + expected, abs=0.01 * (1 + wait.longest))


def test_sums_the_longest_and_mixtures() -> None:
    wait = Wait(1.0, 1.0)
    step = step_of(1.0, [wait, wait])
    one = Delay.of(0.0, [wait], step)
    assert one.then(one).mean == pytest.approx(2.0, rel=0.01)
    assert one.longest_of(3).mean == pytest.approx(1 + 1 / 2 + 1 / 3, rel=0.01), "of exponentials"
    fixed = Delay.of(1.0, [], step)
    assert fixed.unless(0.25).mean == pytest.approx(0.75, rel=0.01)
    assert percentile([(0.5, fixed), (0.5, Delay.of(3.0, [], step))], 0.5) == pytest.approx(1.0)
    assert percentile([(0.5, fixed), (0.5, Delay.of(3.0, [], step))], 0.6) == pytest.approx(3.0)
