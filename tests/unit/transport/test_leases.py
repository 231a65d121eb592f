"""A word says how far a lease has got, and says nothing of any other lease."""

from __future__ import annotations

import pytest

from shared.leases import Ledger, LedgerView, Progress
from shared.memory import MemoryUnreachable
from shared.wire import Lease


def lent(ledger: Ledger) -> Lease:
    lease = ledger.lend()
    assert lease is not None
    return lease


def test_the_sender_sees_what_the_receiver_does() -> None:
    ledger = Ledger("epd-test-1")
    lease = lent(ledger)
    view = LedgerView(lease.ledger)
    assert (ledger.progress(lease), ledger.returned()) == (Progress.LENT, [])
    view.take(lease)
    assert (ledger.progress(lease), ledger.returned()) == (Progress.TAKEN, [])
    view.give_back(lease)
    view.give_back(lease)
    assert (ledger.progress(lease), ledger.returned()) == (Progress.RETURNED, [lease.slot])
    ledger.end(lease)
    assert ledger.returned() == []


def test_memory_can_be_given_back_that_was_never_taken() -> None:
    ledger = Ledger("epd-test-1")
    lease = lent(ledger)
    LedgerView(lease.ledger).give_back(lease)
    assert ledger.progress(lease) is Progress.RETURNED


def test_a_lease_is_taken_once() -> None:
    ledger = Ledger("epd-test-1")
    lease = lent(ledger)
    view = LedgerView(lease.ledger)
    view.take(lease)
    with pytest.raises(MemoryUnreachable, match="lease has ended"):
        view.take(lease)


def test_what_is_said_of_a_lease_that_ended_does_not_count_for_the_next_one_in_its_place() -> None:
    ledger = Ledger("epd-test-1", slots=1)
    old = lent(ledger)
    view = LedgerView(old.ledger)
    view.take(old)
    ledger.end(old)
    new = lent(ledger)
    assert new.slot == old.slot
    view.give_back(old)
    assert ledger.progress(new) is Progress.LENT
    with pytest.raises(MemoryUnreachable):
        view.take(old)
    view.take(new)
    view.give_back(old)
    assert ledger.progress(new) is Progress.TAKEN


def test_there_are_as_many_leases_as_words() -> None:
    ledger = Ledger("epd-test-1", slots=2)
    first, second = lent(ledger), lent(ledger)
    assert ledger.lend() is None
    ledger.end(first)
    assert lent(ledger).slot == first.slot
    assert second.slot != first.slot


def test_a_word_rests_for_as_long_as_possible_before_it_stands_for_another_lease() -> None:
    ledger = Ledger("epd-test-1", slots=4)
    first = lent(ledger)
    ledger.end(first)
    assert [lent(ledger).slot for _ in range(4)][-1] == first.slot


def test_a_slot_beyond_the_ledger_is_refused() -> None:
    ledger = Ledger("epd-test-1", slots=2)
    lease = lent(ledger).model_copy(update={"slot": 2**40})
    view = LedgerView(lease.ledger)
    with pytest.raises(MemoryUnreachable):
        view.take(lease)
    view.give_back(lease)


def test_a_ledger_must_be_memory_of_whole_words() -> None:
    ledger = Ledger("epd-test-1")
    lease = lent(ledger)
    with pytest.raises(MemoryUnreachable):
        LedgerView(lease.ledger.model_copy(update={"size": 8}))
