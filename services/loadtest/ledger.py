"""The ledger: every record of a load test, of one process or gathered from many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np

from services.loadtest.clock import Clock
from services.loadtest.run import End, Generator, Kind, Record
from services.loadtest.statistics import percentile

_FIELDS = tuple(field.name for field in fields(Record))
_row_of = attrgetter(*_FIELDS)
_KIND, _END = _FIELDS.index("kind"), _FIELDS.index("end")
_MOST_ROWS = 5000
"""Records in one message to the master."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a generator process stands: requests and users that it has, requests it left out, its share of one core."""

    open: int
    users: int
    skipped: int
    cpu: float


class Ledger:
    """Records as requests end, in the clock's time.

    In a process that makes load, ``add`` and ``skip`` fill it. In one that gathers from such processes, ``receive`` does, with
    what ``ship`` gave there: plain lists and numbers, as msgpack takes them.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.began: float | None = None
        """When the load began, in the clock's time."""
        self.open = 0
        """Requests of this process that are under way."""
        self._records: list[Record] = []
        self._told = 0
        self._skipped = 0
        self._workers: dict[str, Standing] = {}
        self._cpu_then = self._cpu_until = (0.0, 0.0)

    def begin(self) -> None:
        """The load begins: what is measured of this process is measured from here on."""
        self.began = self.clock.now()
        self._cpu_then = self._cpu_until = (self.clock.now(), time.process_time())

    def add(self, record: Record) -> None:
        """A request has ended."""
        self._records.append(record)

    def skip(self) -> None:
        """A request was due and is not sent."""
        self._skipped += 1

    def standing(self, users: int) -> Standing:
        """How this process stands. Its share of a core is that up to the last time when it had users here: ask each second."""
        if users:
            self._cpu_until = (self.clock.now(), time.process_time())
        seconds, cpu = (now - then for now, then in zip(self._cpu_until, self._cpu_then, strict=True))
        return Standing(self.open, users, self._skipped, cpu / seconds if seconds > 0 else 0.0)

    def ship(self, users: int) -> list[dict[str, Any]]:
        """Messages about what came since the last time, for the process that gathers. There is at least one."""
        standing = self.standing(users)
        rows = [_row_of(record) for record in self._records]
        self._records.clear()
        parts = [rows[at : at + _MOST_ROWS] for at in range(0, len(rows), _MOST_ROWS)] or [[]]
        return [{"rows": part, "standing": [standing.open, standing.users, standing.skipped, standing.cpu]} for part in parts]

    def receive(self, worker: str, message: dict[str, Any]) -> None:
        """Takes in what a worker shipped."""
        self._records += map(_record, message["rows"])
        self._workers[worker] = Standing(*message["standing"])

    def idle(self, workers: Sequence[str]) -> bool:
        """Whether these workers have nothing under way, and all of their records are here."""
        standings = [self._workers.get(worker) for worker in workers]
        return all(standing is not None and not standing.open and not standing.users for standing in standings)

    def news(self) -> list[Record]:
        """The records that came since this was last asked."""
        fresh, self._told = self._records[self._told :], len(self._records)
        return fresh

    def records(self, zero: float) -> list[Record]:
        """All records in order of sending, in seconds since ``zero``, a time of the clock."""
        shifted = (
            replace(
                record,
                due=record.due - zero,
                sent=record.sent - zero,
                first=None if record.first is None else record.first - zero,
                ended=record.ended - zero,
            )
            for record in self._records
        )
        return sorted(shifted, key=lambda record: record.sent)

    def generator(self) -> Generator:
        """How the load was made, by all processes that made it."""
        standings = list(self._workers.values()) or [self.standing(0)]
        late = np.array([max(0.0, record.sent - record.due) for record in self._records])
        return Generator(
            processes=len(standings),
            cpu=max(standing.cpu for standing in standings),
            late_p99=percentile(late, 0.99) if len(late) else 0.0,
            skipped=sum(standing.skipped for standing in standings),
        )


def _record(row: Sequence[Any]) -> Record:
    values = list(row)
    values[_KIND], values[_END] = Kind(values[_KIND]), End(values[_END])
    return Record(*values)
