"""The records of a run as columns, so that a hundred thousand of them are looked at in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from services.loadtest.run import End, Kind, Record
from services.loadtest.spans import Floats, Mask


@dataclass(frozen=True, slots=True)
class Columns:
    """Row by row what is in ``records``, named as there, in order of sending. ``first`` is NaN where no token came.

    ``due`` is whether an answer is: clients that hung up on purpose are none of anybody's figures.
    """

    records: Sequence[Record]
    kind: NDArray[np.str_]
    code: NDArray[np.str_]
    status: NDArray[np.int64]
    sent: Floats
    first: Floats
    ended: Floats
    deadline: Floats
    retry_after: Floats
    streamed: Mask
    fresh: Mask
    answered: Mask
    due: Mask
    ok: Mask
    judged: Mask
    wrong: Mask

    @classmethod
    def of(cls, records: Iterable[Record]) -> Columns:
        records = sorted(records, key=attrgetter("sent"))

        def floats(values: list[float | None]) -> Floats:
            return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

        def mask(values: list[bool]) -> Mask:
            return np.array(values, dtype=np.bool_)

        kind = np.array([str(record.kind) for record in records], dtype="U16")
        code = np.array([record.code for record in records], dtype="U64")
        status = np.array([record.status for record in records], dtype=np.int64)
        answered = mask([record.end is End.ANSWERED for record in records])
        return cls(
            records=records,
            kind=kind,
            code=code,
            status=status,
            sent=floats([record.sent for record in records]),
            first=floats([record.first for record in records]),
            ended=floats([record.ended for record in records]),
            deadline=floats([record.deadline for record in records]),
            retry_after=floats([record.retry_after for record in records]),
            streamed=mask([record.streamed for record in records]),
            fresh=mask([record.fresh for record in records]),
            answered=answered,
            due=mask([record.end is not End.HUNG_UP for record in records]),
            ok=mask([record.ok for record in records]),
            judged=mask([record.right is not None for record in records]),
            wrong=mask([record.right is False for record in records]) & (status == 200),
        )

    @property
    def seconds(self) -> Floats:
        """From sending to the end of the answer."""
        return self.ended - self.sent

    @property
    def text(self) -> Mask:
        return np.asarray(self.kind == str(Kind.TEXT), dtype=np.bool_)

    @property
    def broken(self) -> Mask:
        """Requests with bytes that are no picture."""
        return np.asarray(self.kind == str(Kind.BROKEN), dtype=np.bool_)

    @property
    def pictures(self) -> Mask:
        """Requests about pictures that can be answered."""
        return ~self.text & ~self.broken

    @property
    def success(self) -> Mask:
        """Whole answers of status 200."""
        return self.ok & ~self.broken

    @property
    def unavailable(self) -> Mask:
        """Answers of status 503."""
        return np.asarray(self.answered & (self.status == 503), dtype=np.bool_)

    def sent_between(self, began: float, ended: float) -> slice:
        """The rows of what was sent from one moment on, and before another."""
        first, last = np.searchsorted(self.sent, (began, ended))
        return slice(int(first), int(last))

    def pick(self, chosen: Mask, badness: Floats | None = None, most: int | None = None) -> tuple[Record, ...]:
        """The records of some rows, those of the greatest ``badness`` first; the slowest first where none is given."""
        rows = np.flatnonzero(chosen)
        worst = rows[np.argsort(-(self.seconds if badness is None else badness)[rows], kind="stable")]
        return tuple(self.records[row] for row in worst[:most])
