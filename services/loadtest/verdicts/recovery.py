"""How soon service is back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.loadtest.run import Fault
from services.loadtest.verdicts.verdict import Evidence, Verdict
from services.loadtest.wording import duration, limit, many, some


@dataclass(frozen=True, slots=True)
class Return:
    """What came after one fault: seconds to the first 200 about a new picture, or none, and what is to be said of it."""

    seconds: float | None = None
    failed: bool = False
    sentence: str = ""


def recovered(evidence: Evidence) -> Iterator[Verdict]:
    """After each fault, a new picture is soon answered again, without anybody's help."""
    bound, faults = evidence.bounds.recovered, evidence.run.faults
    if bound == "off" or not faults:
        return
    found = [
        (fault, _return(evidence, fault, bound)) for fault in faults if fault.lifting is not None or fault.cleared is not None
    ]
    times = [back.seconds for _, back in found if back.seconds is not None]
    judged = f"at most {duration(max(times, default=None))}, of {many(len(times), 'fault')}"
    told = sorted(((fault, back) for fault, back in found if back.sentence), key=lambda each: not each[1].failed)
    yield Verdict(
        name="recovered",
        promise="Service is back soon after a fault, with nothing restarted.",
        holds=not any(back.failed for _, back in found),
        measured=judged if times else "no fault ended that could be judged",
        bound=f"a new picture's 200 at most {limit(bound)} after",
        detail=some([f"{fault.line} (at {duration(fault.ordered)}): {back.sentence}" for fault, back in told]),
    )


def _return(evidence: Evidence, fault: Fault, bound: float) -> Return:
    columns = evidence.columns
    if fault.cleared is None:
        return Return(failed=True, sentence="it was undone, but what it hit never came back.")
    lifting = fault.cleared if fault.lifting is None else fault.lifting
    asked = columns.due & columns.pictures & columns.fresh
    answers = asked & columns.success & ((columns.sent >= lifting) | (columns.ended >= fault.cleared))
    seconds = max(0.0, float(columns.ended[answers].min()) - fault.cleared) if answers.any() else None
    if seconds is not None and seconds <= bound:
        return Return(seconds)
    latest = fault.cleared + bound
    if any(began < latest and ended > fault.cleared for began, ended in evidence.no_encoder):
        return Return(sentence="not judged, since other faults left no encoder.")
    if not (asked & (columns.sent >= lifting) & (columns.sent <= latest)).any():
        return Return(sentence="nothing was asked after it.")
    if seconds is not None:
        return Return(seconds, failed=True, sentence=f"back only after {duration(seconds)}.")
    if latest > evidence.run.seconds:
        left = duration(evidence.run.seconds - fault.cleared)
        return Return(failed=True, sentence=f"no 200 in the {left} that were left: let the scenario last longer.")
    return Return(failed=True, sentence="no new picture was answered any more.")
