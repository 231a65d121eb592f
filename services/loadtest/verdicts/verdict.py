"""One promise, and what was found of it."""

from __future__ import annotations

from dataclasses import dataclass

from services.loadtest.columns import Columns
from services.loadtest.phases import all_affected, disturbed, in_effect, without_encoders
from services.loadtest.run import Record, Run
from services.loadtest.scenario import Verdicts
from services.loadtest.spans import Floats, Mask, touched

MOST_OFFENDERS = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a promise holds. ``measured``, ``bound`` and ``detail`` are for readers."""

    name: str
    promise: str
    holds: bool
    measured: str
    bound: str
    offenders: tuple[Record, ...] = ()
    """Some of the requests that break it, the worst first."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run, made ready to be looked at from all sides."""

    run: Run
    columns: Columns
    faulty: Floats
    """When any fault was in effect."""
    no_encoder: Floats
    """When certainly no encoder could compute."""
    all_affected: Floats
    """When some fault was in effect on each encoder."""
    wholly_calm: Mask
    """Requests from whose sending to whose end no fault was in effect, nor recovered from."""

    @classmethod
    def of(cls, run: Run) -> Evidence:
        columns = Columns.of(run.records)
        return cls(
            run=run,
            columns=columns,
            faulty=in_effect(run),
            no_encoder=without_encoders(run),
            all_affected=all_affected(run),
            wholly_calm=~touched(disturbed(run), columns.sent, columns.ended),
        )

    @property
    def bounds(self) -> Verdicts:
        return self.run.scenario.verdicts
