"""The ledger: records of one process, or gathered from many."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest

from services.loadtest.clock import Clock
from services.loadtest.ledger import Ledger
from services.loadtest.run import End, Kind, Record


def record(number: int, sent: float = 0.0, **more: Any) -> Record:
    usual: dict[str, Any] = {"kind": Kind.IMAGE, "streamed": True, "fresh": True, "deadline": 10.0, "due": sent}
    usual |= {"first": sent + 1, "ended": sent + 2, "end": End.ANSWERED, "status": 200, "code": "ok"}
    return Record(id=f"lt-{number}", sent=sent, **(usual | more))


def over_the_wire(message: dict[str, Any]) -> dict[str, Any]:
    """As Locust's master gets it."""
    got: dict[str, Any] = msgpack.loads(msgpack.dumps(message), raw=False, strict_map_key=False)
    return got


def test_records_are_in_order_of_sending_and_in_the_runs_time() -> None:
    ledger = Ledger(Clock())
    late, early = record(1, sent=1012.0), record(2, sent=1010.5, first=None)
    ledger.add(late)
    ledger.add(early)
    first, second = ledger.records(zero=1000.0)
    assert (first.id, first.due, first.sent, first.first, first.ended) == ("lt-2", 10.5, 10.5, None, 12.5)
    assert (second.id, second.sent, second.first, second.ended) == ("lt-1", 12.0, 13.0, 14.0)


def test_a_master_has_what_its_workers_had() -> None:
    master, workers = Ledger(Clock()), [Ledger(Clock()), Ledger(Clock())]
    wrong = record(1, sent=1.0, right=False, said="Grün.", expected="Blue.", retry_after=2.5, detail="é", answered_id="x")
    gone = record(2, sent=2.0, kind=Kind.BROKEN, end=End.HUNG_UP, first=None, status=0, code="")
    workers[0].add(wrong)
    workers[1].add(gone)
    for name, worker in zip("ab", workers, strict=True):
        for message in worker.ship(users=0):
            master.receive(name, over_the_wire(message))
    assert master.records(zero=0.0) == [wrong, gone]
    assert [type(value) for value in dataclasses.astuple(master.records(0.0)[1])] == [
        type(value) for value in dataclasses.astuple(gone)
    ]


def test_nothing_is_shipped_twice_and_messages_stay_small() -> None:
    master, worker = Ledger(Clock()), Ledger(Clock())
    for number in range(12_000):
        worker.add(record(number))
    messages = worker.ship(users=1)
    assert [len(message["rows"]) for message in messages] == [5000, 5000, 2000]
    worker.add(record(12_000))
    for message in [*messages, *worker.ship(users=0), *worker.ship(users=0)]:
        master.receive("a", message)
    assert len({each.id for each in master.records(0.0)}) == len(master.records(0.0)) == 12_001


def test_a_master_is_idle_when_all_workers_have_said_that_nothing_is_left() -> None:
    master, workers = Ledger(Clock()), {"a": Ledger(Clock()), "b": Ledger(Clock())}

    def report(name: str, users: int) -> None:
        for message in workers[name].ship(users):
            master.receive(name, message)

    workers["a"].open = 1
    report("a", users=0)
    assert not master.idle(["a", "b"])
    workers["a"].open = 0
    report("a", users=0)
    assert not master.idle(["a", "b"])  # of the other one nothing is known
    report("b", users=3)
    assert not master.idle(["a", "b"])
    report("b", users=0)
    assert master.idle(["a", "b"])


def test_how_late_the_generator_was() -> None:
    ledger = Ledger(Clock())
    for number in range(100):
        ledger.add(record(number, sent=10.0, due=10.0 - number / 1000))
    ledger.add(record(100, sent=10.0, due=10.5))
    assert ledger.generator().late_p99 == pytest.approx(0.098)


def test_the_busiest_process_counts_and_all_that_was_left_out() -> None:
    master = Ledger(Clock())
    for name, skipped, cpu in (("a", 3, 0.25), ("b", 4, 0.75)):
        master.receive(name, {"rows": [], "standing": [0, 0, skipped, cpu]})
    found = master.generator()
    assert (found.processes, found.cpu, found.skipped) == (2, 0.75, 7)


def test_the_share_of_a_core_is_that_of_the_time_with_users(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, cpu = [100.0], [5.0]
    clock = Clock()
    monkeypatch.setattr(clock, "now", lambda: wall[0])
    monkeypatch.setattr("time.process_time", lambda: cpu[0])
    ledger = Ledger(clock)
    ledger.begin()
    assert ledger.began == 100.0
    wall[0], cpu[0] = 110.0, 9.0
    ledger.standing(users=2)
    wall[0], cpu[0] = 200.0, 9.5  # nobody is left, and nothing is done any more
    ledger.standing(users=0)
    assert ledger.generator().cpu == pytest.approx(0.4)


def test_a_ledger_without_records() -> None:
    found = Ledger(Clock()).generator()
    assert (found.processes, found.cpu, found.late_p99, found.skipped) == (1, 0.0, 0.0, 0)
