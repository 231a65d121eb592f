"""A run is cut into phases where faults begin and end; what is calm, and when no encoder can compute, is known exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest

from services.loadtest.phases import disturbed, in_effect, phases, without_encoders
from services.loadtest.run import Fault, Run
from tests.unit.loadtest.runs import fault, record, run, scenario


def cut(made: Run) -> list[tuple[str, float, float]]:
    return [(phase.name, phase.began, phase.ended) for phase in phases(made)]


def test_a_run_without_faults_is_calm() -> None:
    (only,) = phases(run([]))
    assert (only.name, only.began, only.ended, only.calm, only.faults) == ("calm", 0, 40, True, ())


def test_a_fault_is_a_phase_and_so_is_its_recovery() -> None:
    killed = fault(10, 14, line="kill encoder-1 for 4s")
    made = run([], [killed])
    assert cut(made) == [
        ("calm", 0, 10),
        ("kill encoder-1", 10, 14),
        ("after kill encoder-1", 14, 18),
        ("calm again", 18, 40),
    ]
    assert [phase.calm for phase in phases(made)] == [True, False, False, True]
    assert [phase.faults for phase in phases(made)] == [(), (killed,), (killed,), ()]


@pytest.mark.parametrize(("recovered", "until"), [("off", 18), (2.0, 16)])
def test_recovery_lasts_as_long_as_the_scenario_grants(recovered: object, until: float) -> None:
    made = run([], [fault(10, 14)], scenario=scenario(recovered=recovered))
    assert cut(made)[-1] == ("calm again", until, 40)


def test_faults_that_overlap_have_a_phase_together_and_recover_as_one() -> None:
    made = run([], [fault(10, 18), fault(14, 19, "encoder-2")])
    assert cut(made) == [
        ("calm", 0, 10),
        ("kill encoder-1", 10, 14),
        ("kill encoder-1 + kill encoder-2", 14, 18),
        ("kill encoder-2", 18, 19),
        ("after kill encoder-1 + kill encoder-2", 19, 23),
        ("calm again", 23, 40),
    ]


def test_two_faults_of_one_moment_make_no_sliver_between_them() -> None:
    made = run([], [fault(10, 14), fault(10.01, 14.02, "encoder-2")])
    names = [name for name, *_ in cut(made)]
    assert names[:2] == ["calm", "kill encoder-1 + kill encoder-2"]
    assert all(phase.seconds > 0.05 for phase in phases(made))


def test_the_phases_cover_the_run_without_gap() -> None:
    made = run([], [fault(10, 18), fault(10.01, 12, "encoder-2"), fault(17, None), fault(39, 45, "encoder-2")])
    found = phases(made)
    assert (found[0].began, found[-1].ended) == (0, 40)
    assert all(left.ended == right.began for left, right in pairwise(found))


def test_a_fault_that_never_ends_lasts_until_the_last_answer() -> None:
    made = run([record(39, 5)], [fault(30, None)])
    assert cut(made)[-1] == ("kill encoder-1", 30, 40)
    assert in_effect(made).tolist() == [[30, 44]]


def test_a_fault_that_could_not_be_done_was_in_effect_for_no_time() -> None:
    made = run([], [fault(10, None, applied=None, error="no such container")])
    assert in_effect(made).tolist() == [[10, 10]]
    assert disturbed(made).tolist() == [[10, 14]]


@pytest.mark.parametrize(
    ("faults", "spans"),
    [
        ([], []),
        ([fault(10, 20)], []),
        ([fault(10, 20, lag=0.5), fault(12, 22, "encoder-2", lag=0.5)], [[12.5, 19.5]]),
        ([fault(10, 20, "encoder-*")], [[10, 20]]),
        ([fault(10, 20, targets=("encoder-1", "encoder-2"))], [[10, 20]]),
        ([fault(10, 20), fault(10, 20, "encoder-2", disabling=False)], []),
        ([fault(10, 12), fault(11, 20), fault(5, 30, "encoder-2")], [[10, 20]]),
        ([fault(10, 20), fault(5, 12, "encoder-2"), fault(15, 30, "encoder-2")], [[10, 12], [15, 20]]),
        ([fault(30, None, "encoder-*")], [[30, 40]]),
        ([fault(30, 35, "encoder-*", lifting=None)], []),
        ([fault(30, None, "encoder-*", error="it did not start again")], []),
    ],
)
def test_the_time_without_any_encoder_is_what_is_certain(faults: list[Fault], spans: list[list[float]]) -> None:
    assert without_encoders(run([], faults)).tolist() == spans


def test_nothing_is_certain_of_encoders_that_nobody_knows() -> None:
    assert len(without_encoders(run([], [fault(10, 20, "encoder-*")], encoders=()))) == 0
