"""What a timeline does to a deployment, and what it records of that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

import pytest

from services.loadtest.deployment import CannotDo, Deployment
from services.loadtest.run import Fault
from services.loadtest.scenario import Action
from services.loadtest.timeline import Timeline


class Stage(Deployment):
    """A deployment that only remembers what was done to it. ``hold`` names calls that do not return before ``go`` is set."""

    def __init__(self, encoders: int = 2) -> None:
        super().__init__()
        self.encoders = tuple(f"encoder-{number}" for number in range(1, encoders + 1))
        self.parts = (*self.encoders, "language")
        self.calls: list[str] = []
        self.failing: set[str] = set()
        self.hold: set[str] = set()
        self.held, self.go = threading.Event(), threading.Event()
        self.well: Callable[[str], bool] = lambda part: True

    def __enter__(self) -> Self:
        return self

    def address(self, part: str) -> str:
        return f"http://{part}"

    def unable(self, action: Action) -> str:
        return ""

    def carry_out(self, verb: str, part: str, options: Mapping[str, str]) -> str:
        self._did(f"{verb} {part}")
        return f"{verb} of {part}"

    def end(self, verb: str, part: str, handle: str) -> None:
        self._did(f"end {handle}")

    def healthy(self, part: str) -> bool:
        return self.well(part)

    def _did(self, call: str) -> None:
        if call in self.hold:
            self.held.set()
            assert self.go.wait(10)
        self.calls.append(call)
        if call in self.failing:
            raise CannotDo("it does not want to")


class Played:
    """A timeline that is run to its end in a thread."""

    def __init__(self, stage: Stage, *lines: str, recovery: float = 10.0) -> None:
        began = time.monotonic()
        self.clock = lambda: time.monotonic() - began
        self.stop = threading.Event()
        self.timeline = Timeline([Action.parse(line) for line in lines], stage, self.clock, recovery)
        self._thread = threading.Thread(target=self.timeline.run, args=(self.stop,), daemon=True)
        self._thread.start()

    def join(self) -> Played:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self

    def finish(self) -> list[Fault]:
        self.join()
        self.timeline.finish()
        return self.timeline.faults


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def in_order(fault: Fault) -> bool:
    assert fault.applied is not None
    assert fault.lifting is not None
    assert fault.cleared is not None
    return fault.ordered <= fault.applied <= fault.lifting <= fault.cleared


def test_what_lasts_is_undone_after_its_time() -> None:
    stage = Stage()
    (fault,) = Played(stage, "0s pause encoder-1 for 100ms").finish()
    assert stage.calls == ["pause encoder-1", "resume encoder-1"]
    assert in_order(fault)
    assert fault.lifting is not None
    assert fault.lifting >= 0.1
    assert (fault.line, fault.action, fault.targets) == ("pause encoder-1 for 100ms", "pause", ("encoder-1",))
    assert fault.disabling
    assert not fault.error


def test_it_is_cleared_when_its_target_says_that_it_is_up() -> None:
    stage, up = Stage(), threading.Event()
    stage.well = lambda part: up.is_set()
    played = Played(stage, "0s kill encoder-1", "50ms start encoder-1").join()
    (fault,) = played.timeline.faults
    until(lambda: fault.lifting is not None)
    assert fault.cleared is None
    came_up = played.clock()
    up.set()
    played.finish()
    assert fault.cleared is not None
    assert fault.cleared >= came_up


def test_a_target_that_does_not_come_back_is_an_error() -> None:
    stage = Stage()
    stage.well = lambda part: False
    (fault,) = Played(stage, "0s kill encoder-1", "10ms start encoder-1", recovery=0.1).finish()
    assert fault.cleared is None
    assert fault.error == "encoder-1 did not come back within 0.1 s"


def test_a_line_is_one_fault_whatever_its_targets() -> None:
    stage, up = Stage(), threading.Event()
    stage.hold = {"kill encoder-2"}
    stage.well = lambda part: part == "encoder-1" or up.is_set()
    played = Played(stage, "0s kill encoder-*", "200ms start encoder-1", "300ms start encoder-2")
    until(lambda: "kill encoder-1" in stage.calls)
    assert stage.held.wait(10)
    (fault,) = played.timeline.faults
    assert fault.targets == ("encoder-1", "encoder-2")
    assert fault.applied is None  # encoder-2 is not dead yet
    stage.go.set()
    until(lambda: fault.applied is not None)
    played.join()
    until(lambda: "start encoder-2" in stage.calls)
    assert fault.lifting is not None
    assert fault.lifting < 0.3  # that of the first
    assert fault.cleared is None  # the last is not up
    up.set()
    played.finish()
    assert in_order(fault)
    assert fault.cleared is not None
    assert fault.cleared >= 0.3


def test_what_is_lifted_before_it_was_wholly_in_effect_was_never_so() -> None:
    stage = Stage()
    stage.hold = {"pause encoder-2"}
    played = Played(stage, "0s pause encoder-*", "50ms resume encoder-1").join()
    (fault,) = played.timeline.faults
    until(lambda: fault.lifting is not None)
    stage.go.set()
    played.finish()
    assert fault.applied is None
    assert fault.cleared is not None


def test_nothing_waits_for_what_is_done_to_another_part() -> None:
    stage = Stage()
    stage.hold = {"stop encoder-1"}
    played = Played(stage, "0s stop encoder-1", "10ms pause encoder-2 for 10ms").join()
    other = played.timeline.faults[1]
    until(lambda: other.cleared is not None)
    assert played.timeline.faults[0].applied is None
    stage.go.set()
    played.finish()


def test_what_is_done_to_one_part_is_done_in_order() -> None:
    stage = Stage()
    stage.hold = {"stop encoder-1"}
    played = Played(stage, "0s stop encoder-1", "10ms start encoder-1", "20ms pause encoder-1", "30ms resume encoder-1").join()
    stage.go.set()
    faults = played.finish()
    assert stage.calls == ["stop encoder-1", "start encoder-1", "pause encoder-1", "resume encoder-1"]
    assert all(in_order(fault) for fault in faults)


def test_nothing_waits_for_a_part_to_come_up() -> None:
    stage = Stage()
    # It cannot be reached before it is connected again, which comes after its start.
    stage.well = lambda part: "connect encoder-1" in stage.calls
    faults = Played(
        stage,
        "0s kill encoder-1",
        "10ms disconnect encoder-1",
        "20ms start encoder-1",
        "30ms connect encoder-1",
    ).finish()
    assert [fault.error for fault in faults] == ["", ""]
    assert all(in_order(fault) for fault in faults)


def test_what_fails_is_told_and_the_rest_goes_on() -> None:
    stage = Stage()
    stage.failing = {"kill encoder-1"}
    failed, other = Played(stage, "0s kill encoder-1", "10ms kill encoder-2 for 10ms").finish()
    assert failed.error == "encoder-1: it does not want to"
    assert failed.applied is None
    assert in_order(other)


def test_an_error_of_the_tools_own_is_told_like_any_other() -> None:
    stage = Stage()

    def broken(verb: str, part: str, options: Mapping[str, str]) -> str:
        raise KeyError(part)

    stage.carry_out = broken  # type: ignore[method-assign]
    (fault,) = Played(stage, "0s kill encoder-1").finish()
    assert "KeyError" in fault.error


def test_an_ending_that_fails_is_told_even_if_it_ends_nothing() -> None:
    stage = Stage()
    stage.failing = {"start encoder-1"}
    (fault,) = Played(stage, "0s start encoder-1").finish()
    assert (fault.action, fault.error) == ("start", "encoder-1: it does not want to")


def test_an_ending_that_fails_is_tried_again_in_the_end() -> None:
    stage = Stage()
    stage.failing = {"start encoder-1"}
    played = Played(stage, "0s kill encoder-1", "10ms start encoder-1").join()
    (fault,) = played.timeline.faults
    until(lambda: bool(fault.error))
    stage.failing.clear()
    played.finish()
    assert stage.calls == ["kill encoder-1", "start encoder-1", "start encoder-1"]
    assert fault.cleared is not None


def test_in_the_end_all_is_undone() -> None:
    stage = Stage()
    faults = Played(
        stage,
        "0s slow encoder-1 loss=1%",
        "0s disconnect encoder-1",
        "0s corrupt encoder-1",
        "0s pause encoder-2",
        "0s kill language",
    ).finish()
    assert all(in_order(fault) for fault in faults)
    assert [call for call in stage.calls if call.endswith("encoder-1")] == [
        "slow encoder-1",
        "disconnect encoder-1",
        "corrupt encoder-1",
        "connect encoder-1",  # before the encoder is asked for anything
        "restore encoder-1",
        "end corrupt of encoder-1",
    ]
    assert {"resume encoder-2", "start language"} <= set(stage.calls)


def test_a_new_process_has_none_of_the_old_ones_faults_but_its_network() -> None:
    stage = Stage()
    played = Played(
        stage,
        "0s slow encoder-1 loss=1%",
        "10ms hang encoder-1",
        "20ms pause encoder-1",
        "30ms kill encoder-1",
        "40ms start encoder-1",
    ).join()
    until(lambda: [fault.cleared is not None for fault in played.timeline.faults] == [False, True, True, True])
    played.finish()
    assert stage.calls[-1] == "restore encoder-1"


def test_a_start_ends_nothing_of_a_process_that_was_not_ended() -> None:
    stage = Stage()
    played = Played(stage, "0s pause encoder-1", "10ms start encoder-1").join()
    until(lambda: "start encoder-1" in stage.calls)
    assert played.timeline.faults[0].lifting is None
    played.finish()


def test_an_encoder_that_a_fault_has_crashed_is_started() -> None:
    stage = Stage()
    (fault,) = Played(stage, "0s crash encoder-1 for 50ms").finish()
    assert stage.calls == ["crash encoder-1", "start encoder-1", "end crash of encoder-1"]
    assert in_order(fault)


def test_the_end_of_a_fault_that_was_ended_before_is_not_that_of_a_later_one() -> None:
    stage = Stage()
    played = Played(
        stage, "0s kill encoder-1 for 200ms", "20ms start encoder-1", "40ms kill encoder-1", "250ms pause encoder-2"
    ).join()
    assert stage.calls.count("start encoder-1") == 1
    assert played.timeline.faults[1].lifting is None
    played.finish()


def test_what_ends_comes_before_what_begins_at_the_same_time() -> None:
    stage = Stage()
    Played(stage, "0s kill encoder-1 for 50ms", "50ms kill encoder-1 for 50ms").finish()
    assert stage.calls == ["kill encoder-1", "start encoder-1"] * 2


def test_a_restart_ends_by_itself() -> None:
    stage = Stage()
    (fault,) = Played(stage, "0s restart encoder-1").finish()
    assert stage.calls == ["stop encoder-1", "start encoder-1"]
    assert in_order(fault)


def test_clear_ends_all_faults_of_the_route_and_no_others() -> None:
    stage = Stage()
    played = Played(stage, "0s corrupt encoder-1", "0s drop encoder-1", "0s pause encoder-1", "20ms clear encoder-1").join()
    until(lambda: [fault.cleared is not None for fault in played.timeline.faults] == [True, True, False])
    played.finish()


def test_a_run_that_is_stopped_orders_nothing_more() -> None:
    stage = Stage()
    played = Played(stage, "0s kill encoder-1 for 60s", "30s kill encoder-2")
    until(lambda: "kill encoder-1" in stage.calls)
    played.stop.set()
    (fault,) = played.finish()
    assert stage.calls == ["kill encoder-1", "start encoder-1"]
    assert in_order(fault)


def test_the_progress_line_says_what_is_in_effect() -> None:
    stage, up = Stage(), threading.Event()
    stage.hold = {"kill encoder-1"}
    stage.well = lambda part: up.is_set()
    played = Played(stage, "0s kill encoder-1", "100ms start encoder-1")
    now = played.clock
    assert stage.held.wait(10)
    assert played.timeline.current(now()) == "kill encoder-1 …"
    stage.go.set()
    until(lambda: played.timeline.current(now()) == "kill encoder-1")
    until(lambda: played.timeline.current(now()) == "recovery from kill encoder-1")
    up.set()
    played.finish()
    assert played.timeline.current(now()) == "calm"


@pytest.mark.parametrize(
    ("line", "disabling"),
    [
        ("kill", True),
        ("pause", True),
        ("disconnect", True),
        ("slow loss=10%", False),
        ("hang", True),
        ("hang probability=1.0 at=fetch", True),
        ("hang p=1", True),
        ("hang probability=0.9", False),
        ("hang seconds=3", False),
        ("hang count=1", False),
        ("hang at=publish", False),
        ("crash", False),
        ("error", False),
    ],
)
def test_only_what_lets_nothing_through_is_disabling(line: str, disabling: bool) -> None:
    stage = Stage()
    (fault,) = Played(stage, f"0s {line} encoder-1").finish()
    assert fault.disabling is disabling
