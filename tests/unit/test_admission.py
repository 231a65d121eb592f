"""What the encoder takes on is bounded in items and bytes, one call always fits, and nothing stays when a call ends."""

from __future__ import annotations

import pytest

from services.encoder.admission import Admission
from shared.errors import EncoderOverloaded, InvalidRequest
from shared.pace import Pace


def test_items_are_bounded_and_come_back() -> None:
    admission = Admission(max_items=3, max_bytes=100)
    with admission.call(2, 0), pytest.raises(EncoderOverloaded, match="2 of at most 3 items"), admission.call(2, 0):
        pass
    with admission.call(3, 0):
        assert admission.items == 3
    assert admission.items == 0


def test_a_call_that_never_fits_is_told_so() -> None:
    with pytest.raises(InvalidRequest, match="at most 3 items"), Admission(3, 100).call(4, 0):
        pass


@pytest.mark.parametrize("at_admission", [0, 41])
def test_bytes_are_bounded_at_admission_and_later(at_admission: int) -> None:
    admission = Admission(max_items=10, max_bytes=100)
    with admission.call(1, 60):
        with pytest.raises(EncoderOverloaded, match="60 of at most 100 bytes"), admission.call(1, at_admission) as share:
            share.hold(41)
        assert (admission.held, admission.items) == (60, 1)
        with admission.call(1, 40):
            assert admission.held == 100
    assert (admission.held, admission.items) == (0, 0)


def test_a_call_that_is_alone_may_have_any_size() -> None:
    admission = Admission(max_items=10, max_bytes=100)
    with admission.call(2, 150) as share:
        share.hold(1000)
        with pytest.raises(EncoderOverloaded), admission.call(1, 1):
            pass
        share.release(1100)
        with admission.call(1, 50):
            pass
    assert (admission.held, admission.items) == (0, 0)


def test_what_a_failed_call_held_is_free_again() -> None:
    admission = Admission(max_items=10, max_bytes=100)

    def fail() -> None:
        with admission.call(2, 30) as share:
            share.hold(20)
            share.release(5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (admission.held, admission.items) == (0, 0)


def test_retry_after_is_the_time_that_the_excess_takes() -> None:
    now = 100.0
    admission = Admission(max_items=4, max_bytes=100, pace=Pace(lambda: now))
    for _ in range(60):
        with admission.call(1, 0):
            now += 4.0
    with admission.call(4, 80):
        with pytest.raises(EncoderOverloaded) as items, admission.call(3, 0):
            pass
        assert items.value.retry_after == pytest.approx(12, rel=0.1)
        now += 16.0
    with admission.call(2, 80):
        # 20 bytes too many of 80 that two items hold: half an item, so one has to end. That refusals end tells nothing.
        for _ in range(10):
            with pytest.raises(EncoderOverloaded) as held, admission.call(1, 40):
                pass
        assert held.value.retry_after == pytest.approx(4, rel=0.1)


def test_a_body_counts_before_it_is_a_call_and_never_twice() -> None:
    admission = Admission(max_items=10, max_bytes=100)
    with admission.body(60) as first:
        assert (admission.held, admission.items) == (60, 0)
        with pytest.raises(EncoderOverloaded, match="60 of at most 100 bytes"), admission.body(41):
            pass
        with admission.body(30), admission.call(2, 50, first) as share:
            assert (admission.held, admission.items) == (80, 2)
            share.release(50)
            share.hold(70)
        assert (admission.held, admission.items) == (0, 0)
    assert (admission.held, admission.items) == (0, 0)
    # Nobody else is left: it is alone, in each of its two lives.
    with admission.body(150) as only, admission.call(1, 200, only) as share:
        share.hold(1)


def test_a_body_is_refused_where_no_item_in_it_could_be_taken() -> None:
    admission = Admission(max_items=1, max_bytes=100)
    with admission.body(0) as waiting:
        with admission.call(1, 0):
            with pytest.raises(EncoderOverloaded, match="1 of at most 1 items"), admission.body(0):
                pass
            with pytest.raises(EncoderOverloaded, match="1 of at most 1 items"), admission.call(1, 0, waiting):
                pass
        with admission.call(1, 0, waiting):
            assert admission.items == 1
