"""Shared memory is not taken from whom it is lent to: neither before it is open, nor by a message that comes twice."""

from __future__ import annotations

import mmap

import pytest
import torch

from services.encoder.transport.lender import Lender
from services.encoder.transport.shm import SharedBlocks
from services.language.embeddings.memory import OpenMemory
from shared.control import Memory
from shared.leases import Ledger, Progress
from shared.memory import Names
from shared.residency import Residency
from shared.wire import Header, pack, read_header
from tests.fuzz.targets import header

NAMES = Names("encoder-1")


def lend() -> tuple[Lender, Ledger, Header]:
    """A lender, its ledger, and a message whose tensors lie in all the memory that it may lend."""
    ledger = Ledger(NAMES.next())
    lender = Lender(ledger, SharedBlocks(NAMES, 2**16))
    tensors = {"embeds": torch.ones(2**14)}
    loan = lender.lend("tcp://127.0.0.1:1", 2**16)
    assert loan is not None
    found = read_header(pack(header(place=loan.place(tensors)), tensors)[0])
    assert isinstance(found, Header)
    return lender, ledger, found


def test_memory_is_not_left_to_a_receiver_that_has_yet_to_open_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder closes what it leaves."""
    lender, _, message = lend()
    memory = OpenMemory(Residency("shm"), "language-1", 2**20)
    real = OpenMemory._segment

    def hurried(self: OpenMemory, place: Memory) -> mmap.mmap:
        assert lender.lend("tcp://127.0.0.1:2", 2**16) is None  # there is no room, and none to be had
        return real(self, place)

    monkeypatch.setattr(OpenMemory, "_segment", hurried)
    assert message.place is not None
    [part] = memory.open(message, message.place)
    assert bytes(part) == torch.ones(2**14).numpy().tobytes()  # type: ignore[arg-type]
    memory.close()


def test_a_message_that_comes_twice_gives_nothing_back_that_the_first_one_holds() -> None:
    _, ledger, message = lend()
    memory = OpenMemory(Residency("shm"), "language-1", 2**20)
    place = message.place
    assert place is not None
    parts = memory.open(message, place)
    memory.give_back(place)  # what the receiver does with the second
    assert ledger.progress(place.lease) is Progress.TAKEN
    parts.clear()
    assert ledger.progress(place.lease) is Progress.RETURNED
    memory.close()


def test_memory_of_a_message_that_nobody_wants_goes_back() -> None:
    _, ledger, message = lend()
    memory = OpenMemory(Residency("shm"), "language-1", 2**20)
    assert message.place is not None
    memory.give_back(message.place)
    assert ledger.progress(message.place.lease) is Progress.RETURNED
    memory.close()
