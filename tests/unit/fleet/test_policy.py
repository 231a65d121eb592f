"""Encoders become more as soon as any sign of load asks for it, and fewer one at a time, without swinging."""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.config import AutoscalingPolicy

from services.fleet.policy import BUSY, ITEMS, WAIT, WAITING, EncoderPolicy, Load, Targets, desired
from tests.unit.test_structure import imports

TARGETS = Targets(items=8, wait_seconds=0.5, busy=0.8, least=1, most=10)
IDLE = Load(items=0, waiting=0, wait_seconds=0, busy=0)


def load(items: float = 0, waiting: float = 0, wait: float = 0, busy: float = 0) -> Load:
    return Load(items, waiting, wait, busy)


@pytest.mark.parametrize(
    ("loads", "planned", "wanted"),
    [
        ([load(items=8)], 1, 1),
        ([load(items=9)], 1, 2),
        ([load(items=16), load(items=1)], 2, 3),
        ([load(busy=0.8)], 1, 1),
        ([load(busy=0.9)], 1, 2),
        ([load(busy=1.0), load(busy=1.0)], 2, 3),
        ([load(waiting=3, wait=0.6)], 1, 2),
        ([load(waiting=3, wait=0.6), load(waiting=1, wait=0.2)], 2, 2),
        ([load(waiting=3, wait=1.0), load(waiting=1, wait=0.6)], 2, 4),
    ],
)
def test_each_sign_alone_asks_for_more(loads: list[Load], planned: int, wanted: int) -> None:
    assert desired(loads, planned, TARGETS) == wanted


def test_one_round_doubles_at_most() -> None:
    assert desired([load(items=500)] * 2, 2, TARGETS) == 4


def test_those_that_are_about_to_be_there_are_not_asked_for_again() -> None:
    busy = [load(items=30)] * 2
    assert desired(busy, 4, TARGETS) == 4
    assert desired(busy, 6, TARGETS) == 6


def test_what_waited_long_ago_counts_no_more_when_nothing_waits() -> None:
    assert desired([load(wait=9.0)], 1, TARGETS) == 1


@pytest.mark.parametrize(
    ("items", "wanted"),
    [(0, 3), (16, 3), (17, 4), (24, 4), (32, 4)],
)
def test_one_goes_where_the_others_have_room_to_spare(items: float, wanted: int) -> None:
    assert desired([load(items=items / 4)] * 4, 4, TARGETS) == wanted


@pytest.mark.parametrize("begin", [1, 10])
def test_a_load_that_stays_leads_to_a_number_that_stays(begin: int) -> None:
    for items in range(81):
        there, before = begin, 0
        for _ in range(20):
            there, before = desired([load(items=items / there)] * there, there, TARGETS), there
        assert there == before, items
        assert there * TARGETS.items >= items


def test_bounds_hold_whatever_the_load_is() -> None:
    assert desired([IDLE], 1, TARGETS) == 1
    assert desired([load(items=1000)] * 10, 10, TARGETS) == 10
    assert desired([], 0, TARGETS) == 1
    assert desired([IDLE] * 12, 12, TARGETS) == 10


def test_without_a_word_from_any_the_number_stays() -> None:
    assert desired([], 4, TARGETS) == 4


def context(told: dict[str, dict[str, float]], planned: int) -> Any:
    return SimpleNamespace(
        aggregated_metrics=told,
        target_num_replicas=planned,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=5,
    )


def serves() -> Any:
    """The policy as Serve's controller gets it: by value, in a process that may not have this project."""
    named = AutoscalingPolicy(policy_function=EncoderPolicy, policy_kwargs={"items": 8, "wait_seconds": 0.5, "busy": 0.8})
    carried = AutoscalingPolicy(
        policy_function=named.policy_function,
        policy_kwargs=named.policy_kwargs,
        _serialized_policy_def=named.get_serialized_policy_def(),
    )
    kind = carried.get_policy()
    assert inspect.isclass(kind)
    return kind(**carried.policy_kwargs)


def test_serve_is_told_what_the_function_says_of_what_replicas_tell() -> None:
    told = {ITEMS: {"a": 20.0, "b": 4.0}, WAITING: {"a": 9.0, "b": 0.0}, WAIT: {"a": 0.1, "b": 0.0}, BUSY: {"a": 1.0, "b": 0.2}}
    assert serves()(context(told, 2)) == (3, {})


def test_a_replica_that_told_only_a_part_is_not_counted() -> None:
    told = {ITEMS: {"a": 1.0, "b": 400.0}, WAITING: {"a": 0.0}, WAIT: {"a": 0.0}, BUSY: {"a": 0.0}}
    assert serves()(context(told, 1)) == (1, {})
    assert serves()(context({}, 3)) == (3, {})


def test_the_policy_needs_nothing_of_this_project_where_it_is_carried_to() -> None:
    needed = {name.partition(".")[0] for path, name in imports("services/fleet") if path.name == "policy.py"}
    assert needed <= sys.stdlib_module_names
