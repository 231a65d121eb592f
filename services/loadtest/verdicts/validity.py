"""Whether the test itself was one: the faults were done and did something, and the generator kept up."""

from __future__ import annotations

from collections.abc import Iterator

from services.loadtest.deployment.verbs import ENDINGS
from services.loadtest.verdicts.verdict import Evidence, Verdict
from services.loadtest.wording import duration, limit, listed, many, some

MOST_CPU = 0.9
"""Share of a core past which a generator process measures itself."""
ROUNDING = 0.5
"""Seconds by which a load may seem to end too early."""


def had_teeth(evidence: Evidence) -> Iterator[Verdict]:
    """Whether the faults did anything: some codes must have come, outside of calm where there are faults."""
    wanted, columns, faults = evidence.bounds.must_see, evidence.columns, evidence.run.faults
    if not wanted:
        return
    looked_at = columns.answered & ~evidence.wholly_calm if faults else columns.answered
    choices = {entry: [code.strip() for code in entry.split("|")] for entry in wanted}
    counts = {code: int((looked_at & (columns.code == code)).sum()) for codes in choices.values() for code in codes}
    missing = [entry for entry, codes in choices.items() if not any(counts[code] for code in codes)]
    detail = f"No {' and no '.join(missing)}: the faults did nothing, or the load is too low to meet them."
    where = "during faults and recovery" if faults else "in the whole run"
    yield Verdict(
        name="had_teeth",
        promise="The scenario did what it is for: codes that it is about came.",
        holds=not missing,
        measured=f"{listed(f'{count:,} × {code}' for code, count in counts.items())}, {where}",
        bound=listed(wanted),
        detail=detail if missing else "",
    )


def faults_applied(evidence: Evidence) -> Iterator[Verdict]:
    """Every fault of the timeline was done."""
    faults = evidence.run.faults
    wanted = sum(action.verb not in ENDINGS for action in evidence.run.scenario.actions())
    if not faults and not wanted:
        return
    failed = [fault for fault in faults if fault.error or fault.applied is None]
    sentences = [f"{fault.line} at {duration(fault.ordered)}: {fault.error or 'it never took effect'}" for fault in failed]
    missing = wanted - sum(fault.action != "load" for fault in faults)
    if missing > 0:
        sentences.append(f"{many(missing, 'line')} of the timeline came to nothing: the load ended before its time.")
    yield Verdict(
        name="faults_applied",
        promise="Every fault of the timeline took effect.",
        holds=not sentences,
        measured=f"{len(faults) - len(failed):,} of {many(len(faults) + max(0, missing), 'fault')}",
        bound="all",
        detail=some([f"{sentence.rstrip('.')}." for sentence in sentences]),
    )


def generator(evidence: Evidence) -> Verdict:
    """The generator kept up: else the figures are about it, and not about the target."""
    run, made, bound = evidence.run, evidence.run.generator, evidence.bounds.late_p99
    faults = {
        "It was late: let it have more cores or processes, or lower the rate.": made.late_p99 > bound,
        "It skipped requests: raise most_open, or lower the rate.": made.skipped > 0,
        "Its processor was full: let it have more processes, or lower the rate.": made.cpu >= MOST_CPU,
        f"The load ended after {duration(run.seconds)} of {duration(run.scenario.lasts)}.": (
            run.seconds < run.scenario.lasts - ROUNDING
        ),
    }
    return Verdict(
        name="generator",
        promise="The generator kept up, so that the figures are about the target.",
        holds=not any(faults.values()),
        measured=f"{duration(made.late_p99)} late (p99), {made.skipped:,} skipped, {made.cpu * 100:.0f} % of a core",
        bound=f"at most {limit(bound)} late, none skipped, below {MOST_CPU * 100:.0f} % of a core",
        detail=" ".join(sentence for sentence, wrong in faults.items() if wrong),
    )
