"""The figures of a report: by phase, by code, by kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from services.loadtest.columns import Columns
from services.loadtest.phases import Phase
from services.loadtest.run import Kind
from services.loadtest.spans import Floats, Mask
from services.loadtest.statistics import percentile

MOST_PHASES = 24
"""Past so many, phases of the same name are one row of the table."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of how many values, and 50th, 95th and 99th percentile in seconds; NaN of none."""

    count: int
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Floats) -> Percentiles:
        return cls(len(values), *(percentile(values, share) for share in (0.5, 0.95, 0.99)))


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of some requests. Those that hung up on purpose are counted, and in none of the other figures."""

    requests: int
    hung_up: int
    ok: int
    """As they should be: 200, or 400 of bytes that are no picture."""
    refusals: dict[str, int]
    """503s by code."""
    client_errors: int
    """400s."""
    unanswered: int
    """Without a whole answer: given up, or broken off."""
    others: int
    """Other statuses, and streams that ended with an error event."""
    wrong: int
    text: Percentiles
    pictures: Percentiles
    first_token: Percentiles
    """Of streams that succeeded."""

    @property
    def refused(self) -> int:
        return sum(self.refusals.values())

    @classmethod
    def of(cls, columns: Columns, chosen: Mask) -> Figures:
        due = chosen & columns.due
        answered = due & columns.answered
        refused = answered & (columns.status == 503)
        client_errors, success = answered & (columns.status == 400), due & columns.success
        others = answered & ~refused & ~client_errors & ~(columns.status == 200)
        events = answered & (columns.status == 200) & (columns.code != "ok")
        streams = success & columns.streamed & ~np.isnan(columns.first)
        seconds = columns.seconds
        return cls(
            requests=int(chosen.sum()),
            hung_up=int((chosen & ~columns.due).sum()),
            ok=int((due & columns.ok).sum()),
            refusals=dict(Counter(columns.code[refused].tolist()).most_common()),
            client_errors=int(client_errors.sum()),
            unanswered=int((due & ~columns.answered).sum()),
            others=int((others | events).sum()),
            wrong=int((chosen & columns.wrong).sum()),
            text=Percentiles.of(seconds[success & columns.text]),
            pictures=Percentiles.of(seconds[success & ~columns.text]),
            first_token=Percentiles.of((columns.first - columns.sent)[streams]),
        )


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase, or several of the same name, and what became of the requests sent in it."""

    name: str
    calm: bool
    times: int
    began: float
    ended: float
    seconds: float
    """All of them together."""
    figures: Figures

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.figures.requests / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class CodeRow:
    """One way in which requests ended."""

    status: int
    code: str
    count: int
    first: float
    last: float
    """When it came for the first and the last time."""
    seconds: Percentiles
    longest: float


@dataclass(frozen=True, slots=True)
class KindRow:
    kind: Kind
    figures: Figures
    seconds: Percentiles


def by_phase(columns: Columns, phases: list[Phase]) -> list[PhaseRow]:
    """A row for each phase; where they are very many, one for all of the same name."""
    named: dict[str, list[int]] = {}
    for number, phase in enumerate(phases):
        named.setdefault(phase.name if len(phases) > MOST_PHASES else str(number), []).append(number)
    begins = np.array([phase.began for phase in phases])
    where = np.maximum(np.searchsorted(begins, columns.sent, side="right") - 1, 0)
    rows = []
    for numbers in named.values():
        same = [phases[number] for number in numbers]
        figures = Figures.of(columns, np.isin(where, numbers))
        lasted = sum(phase.seconds for phase in same)
        rows.append(PhaseRow(same[0].name, same[0].calm, len(same), same[0].began, same[-1].ended, lasted, figures))
    return rows


def by_code(columns: Columns) -> list[CodeRow]:
    """A row for each status and code of answers that were due, and for those without; the most frequent first."""
    due = columns.due
    label = np.where(columns.answered, columns.code, "(no answer)")
    status = np.where(columns.answered, columns.status, 0)
    rows = []
    for (number, code), count in Counter(zip(status[due].tolist(), label[due].tolist(), strict=True)).most_common():
        these = due & (status == number) & (label == code)
        ended, seconds = columns.ended[these], columns.seconds[these]
        times = (float(ended.min()), float(ended.max()), Percentiles.of(seconds), float(seconds.max()))
        rows.append(CodeRow(number, code or "(no code)", count, *times))
    return rows


def by_kind(columns: Columns) -> list[KindRow]:
    """A row for each kind of request that there was."""
    rows = []
    for kind in Kind:
        chosen = np.asarray(columns.kind == str(kind), dtype=np.bool_)
        if chosen.any():
            seconds = columns.seconds[chosen & columns.due & columns.ok]
            rows.append(KindRow(kind, Figures.of(columns, chosen), Percentiles.of(seconds)))
    return rows
