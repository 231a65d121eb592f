"""How soon service is back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from services.loadtest.columns import Columns
from services.loadtest.run import Fault
from services.loadtest.verdicts.verdict import Evidence, Verdict
from services.loadtest.wording import duration, limit, many, some


@dataclass(frozen=True, slots=True)
class Return:
    """What came after one fault: seconds to the first 200 about a new picture, or none, and what is to be said of it.

    ``missed`` says that it could not be judged for want of requests, though there was time for them.
    """

    seconds: float | None = None
    failed: bool = False
    sentence: str = ""
    missed: bool = False


class NewPictures:
    """Requests about new pictures, made ready to be searched for thousands of faults."""

    def __init__(self, columns: Columns) -> None:
        asked = columns.due & columns.pictures & columns.fresh
        good = asked & columns.success
        self._asked = columns.sent[asked]
        self._sent, self._ended = columns.sent[good], columns.ended[good]
        self._earliest = np.minimum.accumulate(self._ended[::-1])[::-1]
        """The earliest end of each and all that were sent later."""
        self._longest = float((self._ended - self._sent).max(initial=0.0))

    def first_answer(self, lifting: float, cleared: float) -> float | None:
        """When the first 200 came to what was sent after the fault's end was ordered, or came after it had ended."""
        before, after = np.searchsorted(self._sent, (cleared - self._longest, lifting))
        under_way = self._ended[before:after]
        ends = [*self._earliest[after : after + 1], *under_way[under_way >= cleared]]
        return float(min(ends)) if ends else None

    def asked(self, began: float, ended: float) -> bool:
        """Whether any was sent in a time."""
        first, last = np.searchsorted(self._asked, (began, ended))
        return bool(first < last)


def recovered(evidence: Evidence) -> Iterator[Verdict]:
    """After each fault, a new picture is soon answered again, without anybody's help."""
    bound, faults = evidence.bounds.recovered, evidence.run.faults
    if bound == "off" or not faults or not evidence.run.scenario.traffic.mix.new_pictures:
        return
    pictures = NewPictures(evidence.columns)
    found = [
        (fault, _return(evidence, pictures, fault, bound))
        for fault in faults
        if fault.lifting is not None or fault.cleared is not None
    ]
    times = [back.seconds for _, back in found if back.seconds is not None]
    missed = not times and any(back.missed for _, back in found)
    never = sum(back.failed and back.seconds is None for _, back in found)
    measured = [f"at most {duration(max(times))}, of {many(len(times), 'fault')}"] if times else []
    measured += [f"never, of {many(never, 'fault')}"] if never else []
    told = sorted(((fault, back) for fault, back in found if back.sentence), key=lambda each: not each[1].failed)
    sentences = [f"{fault.line} (at {duration(fault.ordered)}): {back.sentence}" for fault, back in told]
    yield Verdict(
        name="recovered",
        promise="Service is back soon after a fault, with nothing restarted.",
        holds=not missed and not any(back.failed for _, back in found),
        measured="; ".join(measured) or "no fault ended that could be judged",
        bound=f"a new picture's 200 at most {limit(bound)} after",
        detail=some([*(["Raise the rate, so that there is something to judge by."] if missed else []), *sentences]),
    )


def _return(evidence: Evidence, pictures: NewPictures, fault: Fault, bound: float) -> Return:
    if fault.cleared is None:
        return Return(failed=True, sentence="it was undone, but what it hit never came back.")
    lifting = fault.cleared if fault.lifting is None else fault.lifting
    first, latest = pictures.first_answer(lifting, fault.cleared), fault.cleared + bound
    seconds = None if first is None else max(0.0, first - fault.cleared)
    if seconds is not None and seconds <= bound:
        return Return(seconds)
    others = evidence.all_affected
    if ((others[:, 0] < latest) & (others[:, 1] > fault.cleared)).any():
        return Return(sentence="not judged, since all encoders had other faults.")
    if not pictures.asked(lifting, latest):
        return Return(sentence="nothing was asked after it.", missed=latest <= evidence.run.scenario.lasts)
    if seconds is not None:
        return Return(seconds, failed=True, sentence=f"back only after {duration(seconds)}.")
    if latest > evidence.run.seconds:
        left = duration(evidence.run.seconds - fault.cleared)
        return Return(failed=True, sentence=f"no 200 in the {left} that were left: let the scenario last longer.")
    return Return(failed=True, sentence="no new picture was answered any more.")
