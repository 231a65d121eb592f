"""Memory is lent, taken back, lent again, and never to two at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from services.encoder.transport.lender import Lender, Loan, offsets_of
from services.encoder.transport.shm import SharedBlocks, rounded
from shared.leases import Ledger, LedgerView
from shared.memory import MemoryUnreachable, Names, attach
from shared.wire import SharedMemory

HERE, THERE = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
KIB = 1024


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Lending:
    """A lender of ``max_bytes``, and what receivers do."""

    def __init__(self, max_bytes: int = 256 * KIB, slots: int = 64) -> None:
        names = Names("test")
        self.clock = Clock()
        ledger = Ledger(names.next(), slots)
        self.lender = Lender(ledger, SharedBlocks(names, max_bytes, self.clock), self.clock)

    def lend(self, size: int = 64 * KIB, endpoint: str = HERE) -> Loan | None:
        return self.lender.lend(endpoint, size)

    def lent(self, size: int = 64 * KIB, endpoint: str = HERE) -> tuple[Loan, SharedMemory]:
        loan = self.lend(size, endpoint)
        assert loan is not None
        place = loan.place({"embeds": torch.zeros(size // 4)})
        assert isinstance(place, SharedMemory)
        return loan, place


def take(place: SharedMemory) -> None:
    LedgerView(place.lease.ledger).take(place.lease)


def give_back(place: SharedMemory) -> None:
    LedgerView(place.lease.ledger).give_back(place.lease)


def test_tensors_lie_where_they_are_said_to() -> None:
    lending = Lending()
    loan = lending.lend(4 * KIB)
    assert loan is not None
    tensors = {"embeds": torch.arange(5.0), "none": torch.empty(0, 3), "deepstack.0": torch.ones(2, 3, dtype=torch.bfloat16).T}
    place = loan.place(tensors)
    assert isinstance(place, SharedMemory)
    memory = attach(place.segment)
    assert place.offsets == (0, 64, 64)
    for offset, tensor in zip(place.offsets, tensors.values(), strict=True):
        if tensor.numel():
            there = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            assert torch.equal(there.view(tensor.shape), tensor)


def test_every_tensor_begins_at_an_aligned_place() -> None:
    offsets, size = offsets_of({str(count): torch.zeros(count, dtype=torch.uint8) for count in (1, 63, 64, 65)})
    assert (offsets, size) == ((0, 64, 128, 192), 320)


def test_memory_that_came_back_is_used_again() -> None:
    lending = Lending()
    _, place = lending.lent()
    take(place)
    give_back(place)
    _, again = lending.lent()
    assert again.segment == place.segment
    assert again.lease.generation > place.lease.generation
    assert lending.lender.bytes == 64 * KIB


def test_memory_that_is_in_use_is_not_lent_twice() -> None:
    lending = Lending()
    places = [lending.lent()[1] for _ in range(4)]
    assert len({place.segment.name for place in places}) == 4
    assert lending.lend() is None


def test_where_there_is_no_room_the_oldest_that_a_receiver_has_taken_is_left_to_it() -> None:
    lending = Lending()
    places = [lending.lent()[1] for _ in range(4)]
    take(places[1])
    take(places[2])
    opened = attach(places[1].segment)
    _, new = lending.lent()
    assert new.segment.name not in {place.segment.name for place in places}
    with pytest.raises(MemoryUnreachable):
        attach(places[1].segment)
    attach(places[2].segment)
    assert opened[0] == 0  # the receiver still has it
    assert lending.lender.bytes == 256 * KIB


def test_free_memory_of_other_sizes_goes_first_where_there_is_no_room() -> None:
    lending = Lending()
    for _, place in [lending.lent() for _ in range(4)]:
        give_back(place)
    _, place = lending.lent(200 * KIB)
    assert place.segment.size == 256 * KIB
    assert lending.lender.bytes == 256 * KIB


def test_small_messages_do_not_sit_in_large_memory() -> None:
    lending = Lending()
    _, place = lending.lent(192 * KIB)
    give_back(place)
    _, small = lending.lent(64 * KIB)
    assert small.segment.size == 64 * KIB


def test_more_than_all_memory_is_refused_for_good() -> None:
    with pytest.raises(ValueError, match="more than"):
        Lending().lend(257 * KIB)


def test_without_a_free_word_the_oldest_taken_one_is_ended_or_nothing_is_lent() -> None:
    lending = Lending(slots=2)
    _, first = lending.lent()
    lending.lent()
    assert lending.lend() is None
    assert lending.lender.bytes == 3 * 64 * KIB  # what it could not use stays for the next
    take(first)
    lending.lent()


def test_a_withdrawn_loan_is_used_again_unless_somebody_may_still_be_about_it() -> None:
    lending = Lending()
    loan, place = lending.lent()
    lending.lender.withdraw(loan)
    lending.lender.withdraw(loan)
    again, second = lending.lent()
    assert second.segment == place.segment
    lending.lender.withdraw(again, written=False)
    third, other = lending.lent()
    assert other.segment != place.segment
    take(other)
    lending.lender.withdraw(third)
    assert lending.lent()[1].segment != other.segment


def test_what_was_lent_to_one_who_is_gone_is_not_used_again_and_others_keep_theirs() -> None:
    lending = Lending()
    _, gone = lending.lent()
    _, other = lending.lent(endpoint=THERE)
    lending.lender.forget(HERE)
    with pytest.raises(MemoryUnreachable):
        attach(gone.segment)
    attach(other.segment)
    assert (len(lending.lender), lending.lender.bytes) == (1, 64 * KIB)


def test_messages_that_nobody_opened_for_long_are_lost_and_those_in_use_are_not() -> None:
    lending = Lending()
    _, lost = lending.lent()
    _, used = lending.lent()
    take(used)
    lending.clock.now = 59
    lending.lender.tidy()
    assert len(lending.lender) == 2
    lending.clock.now = 61
    lending.lender.tidy()
    assert len(lending.lender) == 1
    with pytest.raises(MemoryUnreachable):
        attach(lost.segment)
    attach(used.segment)


def test_idle_memory_goes_back_to_the_system() -> None:
    lending = Lending()
    _, place = lending.lent()
    give_back(place)
    lending.lender.tidy()
    assert lending.lender.bytes == 64 * KIB
    lending.clock.now = 31
    lending.lender.tidy()
    assert lending.lender.bytes == 0


def test_after_closing_nothing_can_be_opened() -> None:
    lending = Lending()
    _, place = lending.lent()
    lending.lender.close()
    for memory in (place.segment, place.lease.ledger):
        with pytest.raises(MemoryUnreachable):
            attach(memory)


def test_no_memory_is_with_two_at_once_whatever_happens() -> None:
    """Random senders, receivers, withdrawals and deaths: what a receiver has taken stays as it was written for it."""
    randomness = random.Random(1)
    lending = Lending(max_bytes=512 * KIB)
    held: list[tuple[SharedMemory, memoryview, float]] = []
    waiting: list[tuple[Loan, SharedMemory, float]] = []
    for number in range(3000):
        what = randomness.random()
        if what < 0.5:
            loan = lending.lend(randomness.choice((1, 60, 100, 200)) * KIB, randomness.choice((HERE, THERE)))
            if loan is not None:
                place = loan.place({"embeds": torch.full((256,), float(number))})
                assert isinstance(place, SharedMemory)
                waiting.append((loan, place, float(number)))
        elif what < 0.7 and waiting:
            loan, place, value = waiting.pop(randomness.randrange(len(waiting)))
            try:
                take(place)
                held.append((place, memoryview(attach(place.segment)).cast("f"), value))
            except MemoryUnreachable:
                pass  # its endpoint was forgotten meanwhile
        elif what < 0.85 and held:
            give_back(held.pop(randomness.randrange(len(held)))[0])
        elif what < 0.95 and waiting:
            lending.lender.withdraw(waiting.pop()[0])
        elif what > 0.99:
            lending.lender.forget(HERE)
        for _, words, value in held:
            assert words[0] == words[255] == value
        assert lending.lender.bytes <= 512 * KIB


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 300_000, 393_216, 1_000_000, 6_291_456, 67_108_864])
def test_blocks_are_at_most_a_quarter_larger_than_needed(size: int) -> None:
    assert size <= rounded(size) <= max(64 * KIB, size * 5 // 4 + 64 * KIB)
    assert rounded(rounded(size)) == rounded(size)


def test_no_more_than_three_large_messages_are_ahead_of_a_receiver_that_takes_none() -> None:
    lending = Lending(max_bytes=2**28)
    large = [lending.lent(2**24) for _ in range(3)]
    assert lending.lend(2**24) is None
    assert lending.lend(2**24, THERE) is not None
    take(large[0][1])
    assert lending.lend(2**24) is not None
    assert lending.lend(1) is None
    lending.lender.withdraw(large[1][0])
    assert lending.lend(1) is not None


def test_many_small_messages_may_be_ahead() -> None:
    lending = Lending(max_bytes=2**28, slots=1024)
    for _ in range(512):
        assert lending.lend(64 * KIB) is not None
    assert lending.lend(64 * KIB) is None
