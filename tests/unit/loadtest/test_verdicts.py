"""Each verdict holds where its promise was kept, and is the one that fails where it was not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from services.loadtest.run import End, Generator, Kind, Leftover, Run
from services.loadtest.verdicts import Verdict, judge, passed
from tests.unit.loadtest.runs import ENCODERS, calm_run, crash_run, fault, record, refused, run, scenario, text

CRASH = fault(10, 14)
BOTH = [fault(10, 20), fault(10, 20, "encoder-2")]
SURGE = fault(10, 14, line="load 60/s", action="load", targets=(), disabling=False)


def named(made: Run) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in judge(made)}


def failing(made: Run) -> list[str]:
    return [verdict.name for verdict in judge(made) if not verdict.holds]


def with_records(*extra: Any, **changes: Any) -> Run:
    """The calm run and a few requests more."""
    made = calm_run(**changes)
    return replace(made, records=[*made.records, *extra])


def faulty(
    *extra: Any,
    without: Callable[[Any], bool] = lambda _: False,
    faults: Any = None,
    encoders: tuple[str, ...] = ENCODERS,
    **verdicts: Any,
) -> Run:
    """The calm run, with a fault meanwhile that nobody noticed, less some requests, and a few more."""
    asked = scenario(timeline=("10s kill encoder-1",), **verdicts)
    made = calm_run(scenario=asked, faults=[CRASH] if faults is None else faults, encoders=encoders)
    return replace(made, records=[*(each for each in made.records if not without(each)), *extra])


def pictures_between(began: float, ended: float) -> Callable[[Any], bool]:
    return lambda each: each.kind is Kind.IMAGE and began <= each.sent < ended


def test_a_run_that_keeps_every_promise_passes() -> None:
    for made in (calm_run(), faulty(first_503=1.0), crash_run()):
        verdicts = judge(made)
        assert passed(verdicts), [verdict for verdict in verdicts if not verdict.holds]
        assert len({verdict.name for verdict in verdicts}) == len(verdicts)


GIVEN_UP = {"end": End.UNANSWERED, "status": 0, "code": "", "first": None, "right": None}
NOT_CALM = {"calm_success": "off", "text_success": "off"}


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("answered", with_records(record(20, 12, **GIVEN_UP), scenario=scenario(**NOT_CALM))),
        ("answered", with_records(record(20, 1, **GIVEN_UP | {"end": End.BROKEN}), scenario=scenario(**NOT_CALM))),
        ("answered", with_records(record(20, 11.2))),
        ("right", with_records(record(20, right=False, said="a red circle", expected="a blue square"))),
        ("right", calm_run(records=[replace(each, right=None) for each in calm_run().records])),
        ("no_silent_answer", faulty(record(12, 0.5), faults=BOTH, without=pictures_between(9.9, 20))),
        (
            "no_silent_answer",
            faulty(record(12, 9, streamed=True, first=19.5), faults=BOTH, without=pictures_between(9.9, 20)),
        ),
        ("honest_failures", with_records(refused(20, retry_after=None), scenario=scenario(**NOT_CALM))),
        ("honest_failures", with_records(refused(20, retry_after=0.5), scenario=scenario(**NOT_CALM))),
        ("honest_failures", with_records(refused(20, code="too_bad"), scenario=scenario(**NOT_CALM))),
        ("honest_failures", with_records(refused(20, status=500, code="internal_error"), scenario=scenario(**NOT_CALM))),
        ("honest_failures", with_records(refused(20, status=400, code="invalid_media"), scenario=scenario(**NOT_CALM))),
        (
            "honest_failures",
            with_records(record(20, kind=Kind.BROKEN, status=200, code="ok"), scenario=scenario(**NOT_CALM)),
        ),
        ("honest_failures", with_records(record(20, code="encoder_lost", first=None), scenario=scenario(**NOT_CALM))),
        ("honest_failures", with_records(record(20, code="odd", first=20.01), scenario=scenario(**NOT_CALM))),
        ("calm", with_records(refused(20))),
        ("calm", faulty(refused(30))),
        ("faults_survived", faulty(refused(12), fault_success=1.0)),
        ("faults_survived", faulty(refused(9.9, 0.2), fault_success=1.0)),
        ("texts_go_on", faulty(refused(12, kind=Kind.TEXT, code="engine_overloaded"))),
        ("p99", calm_run(scenario=scenario(p99=0.05))),
        ("texts_unnoticed", faulty(*(text(10 + n / 20, 0.2) for n in range(60)))),
        ("texts_unnoticed", faulty(faults=[fault(2, 38)])),
        ("failed_fast", faulty(*(refused(10 + n / 10, 1.1) for n in range(20)), first_503=1.0)),
        ("failed_fast", faulty(*(record(10 + n / 10, 1.5) for n in range(20)), first_503=1.0)),
        (
            "failed_fast",
            faulty(
                refused(10, 1.0),
                *(refused(11 + n / 30) for n in range(200)),
                faults=BOTH,
                without=pictures_between(9.9, 20),
                first_503=0.5,
            ),
        ),
        ("recovered", faulty(*(refused(14 + n / 2) for n in range(8)), without=pictures_between(13.9, 18.1))),
        ("recovered", faulty(faults=[fault(10, None, lifting=14.0)], calm_success="off")),
        ("recovered", faulty(without=pictures_between(13.9, 18.1))),
        (
            "recovered",
            faulty(
                *(refused(14 + n / 2) for n in range(8)),
                faults=[CRASH, fault(12, 30, "encoder-2", disabling=False)],
                without=pictures_between(13.9, 18.1),
            ),
        ),
        ("failed_fast", faulty(without=pictures_between(9.8, 14.1), first_503=1.0)),
        ("had_teeth", faulty(must_see=("encoder_failed",))),
        ("had_teeth", faulty(refused(30), must_see=("encoder_failed",), calm_success="off")),
        ("had_teeth", faulty(refused(12), must_see=("ok", "encoder_lost"))),
        ("faults_applied", faulty(faults=[CRASH, fault(11, None, applied=None, error="no such container")])),
        ("faults_applied", faulty(faults=[])),
        ("faults_applied", faulty(faults=[SURGE])),
        ("settled", calm_run(leftovers=[Leftover("requests that wait for embeddings", 2)])),
        ("generator", calm_run(generator=Generator(1, 0.95, 0.0, 0))),
        ("generator", calm_run(generator=Generator(1, 0.2, 0.0, 1))),
        ("generator", calm_run(generator=Generator(1, 0.2, 0.3, 0))),
        ("generator", calm_run(seconds=20.0)),
    ],
)
def test_a_broken_promise_fails_the_verdict_that_is_about_it_and_no_other(name: str, made: Run) -> None:
    assert failing(made) == [name]


def test_offenders_are_the_worst_first_and_few() -> None:
    made = with_records(*(record(20, 11 + n) for n in range(1, 40)), scenario=scenario(lasts=90))
    offenders = named(made)["answered"].offenders
    assert len(offenders) == 20
    assert [each.seconds for each in offenders] == sorted((each.seconds for each in offenders), reverse=True)
    assert offenders[0].seconds == pytest.approx(50)


def test_a_request_that_got_no_answer_is_an_offender_before_those_that_are_late() -> None:
    given_up = record(20, 10, **GIVEN_UP)
    assert named(with_records(record(20, 25), given_up))["answered"].offenders[0] == given_up


def test_a_client_that_hung_up_is_nobodys_failure() -> None:
    left = {"end": End.HUNG_UP, "status": 0, "code": "", "first": None, "right": None}
    made = with_records(record(20, 0.01, **left), text(20, 30, **left))
    assert failing(made) == []
    assert "1,170 of 1,170" in named(made)["answered"].measured


def test_a_run_without_requests_does_not_pass() -> None:
    assert {"answered", "calm", "texts_go_on"} <= set(failing(run([])))


def test_without_semantics_nothing_is_called_right_or_wrong() -> None:
    made = with_records(record(20, right=False), semantics=False)
    assert named(made)["right"].holds
    assert named(made)["right"].measured == "not judged"


@pytest.mark.parametrize(
    "answer",
    [
        record(12, 0.5, kind=Kind.REPEATED),  # a cache may know it
        text(12, 0.5),
        record(9.8, 0.5),  # sent while an encoder computed
        record(19.9, 0.5),  # answered by one that was back
        refused(12),
    ],
    ids=lambda each: f"{each.kind}-{each.status}-{each.sent}",
)
def test_what_may_be_answered_without_an_encoder_is_no_lie(answer: Any) -> None:
    made = faulty(answer, faults=BOTH, without=pictures_between(9.9, 20))
    assert named(made)["no_silent_answer"].holds
    assert failing(made) == []


@pytest.mark.parametrize(
    "faults",
    [
        [CRASH],  # the other encoder computes
        [fault(10, 20), fault(10, 20, "encoder-2", disabling=False)],
        [fault(10, 20), fault(10, 20, "encoder-2", lifting=None)],  # it came back by itself, nobody knows when
        [fault(10, 13), fault(13, 20, "encoder-2")],  # one after the other
    ],
)
def test_no_answer_is_a_lie_where_an_encoder_may_have_computed(faults: Any) -> None:
    verdict = named(faulty(record(12, 0.5), faults=faults))["no_silent_answer"]
    assert verdict.holds
    assert "no time without any encoder" in verdict.measured


def test_one_fault_may_disable_all_and_last_to_the_end() -> None:
    made = faulty(record(30, 0.5), faults=[fault(25, None, "encoder-*")], without=pictures_between(25, 40))
    assert not named(made)["no_silent_answer"].holds


def test_a_request_is_calm_only_if_it_is_so_from_its_sending_to_its_end() -> None:
    for unlucky in (refused(9.98, 0.05), refused(13), refused(17.9), refused(5, 15, ended=18.5)):
        assert named(faulty(unlucky))["calm"].holds
    assert not named(faulty(refused(18.1)))["calm"].holds


def test_a_slower_p99_that_may_be_chance_is_not_held_against_it() -> None:
    verdict = named(faulty(text(12.05, 0.2)))["texts_unnoticed"]
    assert verdict.holds
    assert verdict.measured.startswith("10.00 ×")
    assert "not shown to exceed" in verdict.measured


def test_a_few_texts_are_too_few_to_say() -> None:
    verdict = named(faulty(faults=[fault(10, 12)]))["texts_unnoticed"]
    assert not verdict.holds
    assert verdict.measured == 'too few texts to say (41): raise the rate, last longer, or set text_p99_ratio = "off"'


def test_the_same_run_is_always_judged_alike() -> None:
    assert judge(crash_run(honest=False)) == judge(crash_run(honest=False))


def test_recovery_is_not_judged_where_nothing_was_asked_but_after_other_faults() -> None:
    verdict = named(faulty(faults=[CRASH, fault(22, 26)], without=pictures_between(13.9, 18.1)))["recovered"]
    assert verdict.holds
    assert "nothing was asked" in verdict.detail
    assert verdict.measured == "at most 20 ms, of 1 fault"


def test_recovery_is_not_judged_while_other_faults_leave_no_encoder() -> None:
    faults = [fault(10, 12), fault(11, 30, "encoder-2"), fault(12, 30, "encoder-1")]
    verdict = named(faulty(faults=faults, without=pictures_between(11.5, 30)))["recovered"]
    assert verdict.holds
    assert "all encoders had other faults" in verdict.detail


def test_recovery_is_not_judged_while_another_fault_goes_on_everywhere() -> None:
    lies = fault(12, 20, "encoder-*", "corrupt", disabling=False)
    corrupt = (refused(14 + n / 2, code="embedding_corrupt") for n in range(12))
    made = faulty(*corrupt, faults=[CRASH, lies], without=pictures_between(13.9, 20))
    assert failing(made) == []
    assert named(made)["recovered"].measured == "at most 120 ms, of 1 fault"


def test_a_run_that_ends_too_early_does_not_show_recovery() -> None:
    verdict = named(faulty(refused(39), faults=[fault(30, 38)], without=pictures_between(37, 40)))["recovered"]
    assert not verdict.holds
    assert "let the scenario last longer" in verdict.detail
    assert verdict.measured == "never, of 1 fault"


def test_texts_that_a_surge_of_load_slows_are_not_held_against_encoders() -> None:
    slow = [text(10 + n / 20, 0.2) for n in range(60)]
    assert failing(faulty(*slow, faults=[SURGE, fault(16, 25)])) == []
    assert "texts_unnoticed" not in named(faulty(*slow, faults=[SURGE]))
    language = fault(10, 14, "language", "pause")
    assert failing(faulty(*slow, *(record(10, 3) for _ in range(20)), faults=[language, fault(16, 25)], first_503=1.0)) == []


def test_a_kind_that_is_slow_in_calm_may_be_slow_in_a_fault() -> None:
    huge = [record(at, 2.0, Kind.HUGE) for at in (2, 4, 6, 9, 11)]
    assert failing(faulty(*huge, first_503=0.5)) == []
    assert failing(faulty(*huge[:4], record(11, 2.6, Kind.HUGE), first_503=0.5)) == ["failed_fast"]


def test_what_was_done_before_the_last_encoder_fell_does_not_count_as_waiting() -> None:
    made = faulty(record(9.95, 0.1), refused(14), faults=BOTH, without=pictures_between(9.8, 20), first_503=0.5)
    assert failing(made) == []
    assert "the first 50 ms after no encoder was left" in named(made)["failed_fast"].measured


def test_a_broken_picture_may_be_refused_while_encoders_are_down() -> None:
    made = faulty(refused(12, kind=Kind.BROKEN), record(13, kind=Kind.BROKEN), faults=BOTH, without=pictures_between(9.9, 20))
    assert failing(made) == []


def test_a_stream_may_end_with_an_error_after_its_first_token() -> None:
    event = record(10.5, 1, streamed=True, first=10.6, code="encoder_lost", right=None)
    assert failing(faulty(event, first_503=1.0)) == []
    assert failing(faulty(replace(event, end=End.BROKEN))) == ["answered"]


def test_of_alternatives_one_code_is_enough() -> None:
    assert failing(faulty(refused(12), must_see=("encoder_lost | encoder_failed",))) == []


def test_without_known_encoders_it_is_said_that_silence_is_not_judged() -> None:
    verdict = named(faulty(record(12, 0.5), faults=[fault(10, 20, "encoder-*")], encoders=()))["no_silent_answer"]
    assert (verdict.holds, verdict.measured) == (True, "not judged: the encoders are not known")


def test_a_client_that_left_with_a_made_up_token_is_a_witness() -> None:
    left = record(12, 0.5, end=End.HUNG_UP, streamed=True, first=12.5, code="", right=None)
    assert failing(faulty(left, faults=BOTH, without=pictures_between(9.9, 20))) == ["no_silent_answer"]


def test_of_text_only_traffic_nothing_is_asked_that_it_cannot_show() -> None:
    made = faulty(without=lambda each: each.kind is not Kind.TEXT, first_503=1.0)
    asked = scenario(timeline=("10s kill encoder-1",), mix={"text": 1}, first_503=1.0)
    assert not {"recovered", "failed_fast"} & set(named(replace(made, scenario=asked)))


def test_what_is_off_or_cannot_apply_is_left_out() -> None:
    off = dict.fromkeys(("calm_success", "text_success", "text_p99_ratio", "first_503", "recovered", "p99"), "off")
    asked = scenario(timeline=("10s kill encoder-1",), no_leftovers=False, **off)
    assert {verdict.name for verdict in judge(calm_run(scenario=asked, faults=[CRASH]))} == {
        "answered",
        "right",
        "no_silent_answer",
        "honest_failures",
        "faults_applied",
        "generator",
    }
    assert "texts_go_on" not in named(run([record(1)], scenario=scenario(mix={"image": 1})))
    assert not {"recovered", "failed_fast", "texts_unnoticed", "faults_applied"} & set(named(calm_run()))


def test_a_hundred_thousand_requests_are_judged_in_seconds() -> None:
    made = crash_run(rate=2500)
    began = time.process_time()
    judge(made)
    assert time.process_time() - began < 10  # 1 s on two slow cores


def test_so_are_a_thousand_faults() -> None:
    faults = [fault(5 + n / 33, 5 + n / 33 + 0.01, "encoder-*") for n in range(1000)]
    records = [record(at / 1000, 0.001) for at in range(40_000)]
    began = time.process_time()
    judge(run(records, faults, scenario=scenario(first_503=0.5, fault_success=0.1)))
    assert time.process_time() - began < 5  # 0.3 s
