"""Whether the test itself went as it should, and left nothing behind."""

from __future__ import annotations

import math
from collections.abc import Iterator

from services.loadtest.verdicts.verdict import Evidence, Verdict
from services.loadtest.wording import duration, limit, many, some

MOST_CPU = 0.9
"""Share of a core past which a generator process measures itself."""


def faults_applied(evidence: Evidence) -> Iterator[Verdict]:
    """Every fault of the timeline was done."""
    faults, wanted = evidence.run.faults, evidence.run.scenario.timeline
    if not faults and not wanted:
        return
    failed = [fault for fault in faults if fault.error or fault.applied is None]
    sentences = [f"{fault.line} at {duration(fault.ordered)}: {fault.error or 'it never took effect'}" for fault in failed]
    if not faults:
        sentences = [f"The timeline has {many(len(wanted), 'line')}, and none was done."]
    yield Verdict(
        name="faults_applied",
        promise="Every fault of the timeline took effect.",
        holds=not sentences,
        measured=f"{len(faults) - len(failed):,} of {many(len(faults), 'fault')}",
        bound="all",
        detail=some([f"{sentence.rstrip('.')}." for sentence in sentences]),
    )


def settled(evidence: Evidence) -> Iterator[Verdict]:
    """A moment after the load's end, the deployment holds nothing."""
    if not evidence.bounds.no_leftovers:
        return
    leftovers = evidence.run.leftovers
    held = [leftover for leftover in leftovers if leftover.value != 0]
    if not leftovers:
        measured = "not looked at: the deployment does not say"
    else:
        measured = ", ".join(f"{each.value:g} {each.what}" for each in held) or f"nothing ({many(len(leftovers), 'figure')})"
    yield Verdict("settled", "After the load, the deployment holds nothing of it.", not held, measured, "nothing")


def generator(evidence: Evidence) -> Verdict:
    """The generator kept up: else the figures are about it, and not about the target."""
    made, bound = evidence.run.generator, evidence.bounds.late_p99
    late = not math.isnan(made.late_p99) and made.late_p99 > bound
    faults = {
        "It was late: let it have more cores or processes, or lower the rate.": late,
        "It skipped requests: raise most_open, or lower the rate.": made.skipped > 0,
        "Its processor was full: let it have more processes, or lower the rate.": made.cpu >= MOST_CPU,
    }
    return Verdict(
        name="generator",
        promise="The generator kept up, so that the figures are about the target.",
        holds=not any(faults.values()),
        measured=f"{duration(made.late_p99)} late (p99), {made.skipped:,} skipped, {made.cpu * 100:.0f} % of a core",
        bound=f"at most {limit(bound)} late, none skipped, below {MOST_CPU * 100:.0f} % of a core",
        detail=" ".join(sentence for sentence, wrong in faults.items() if wrong),
    )
