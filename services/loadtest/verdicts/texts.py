"""Whether texts notice that encoders fail."""

from __future__ import annotations

from collections.abc import Iterator

from services.loadtest.spans import touched
from services.loadtest.statistics import p99_ratio, percentile
from services.loadtest.verdicts.verdict import MOST_OFFENDERS, Evidence, Verdict
from services.loadtest.wording import duration, many

FEWEST = 50
"""Texts on either side, below which a p99 says nothing."""


def texts_unnoticed(evidence: Evidence) -> Iterator[Verdict]:
    """p99 of texts while faults are in effect against the calm before the first of them.

    A p99 of some hundred texts is noisy. It fails only where the ratio is above the bound and so is the whole of its 95 %
    confidence interval; where it may as well be chance, ``measured`` says so.
    """
    bound, columns, faults = evidence.bounds.text_p99_ratio, evidence.columns, evidence.run.faults
    if bound == "off" or not faults or not evidence.run.scenario.traffic.mix.text:
        return
    name, promise = "texts_unnoticed", "Texts do not notice encoder failures."
    limit = f"p99 at most {bound:g} × that of the calm before"
    texts = columns.text & columns.ok
    during = texts & touched(evidence.faulty, columns.sent, columns.ended)
    before = texts & (columns.ended < min(fault.ordered for fault in faults))
    fewest = min(int(during.sum()), int(before.sum()))
    if fewest < FEWEST:
        part = "during faults" if fewest == during.sum() else "in the calm before the first fault"
        detail = f"{many(fewest, 'text')} succeeded {part}; it takes {FEWEST} on both sides."
        measured = f"too few texts to say ({fewest}): raise the rate or last longer"
        yield Verdict(name, promise, False, measured, limit, detail=detail)
        return
    seconds = columns.seconds
    ratio = p99_ratio(seconds[during], columns.sent[during], seconds[before], columns.sent[before])
    over, shown = ratio.value > bound, ratio.low > bound
    noise = "; not shown to exceed" if over and not shown else ""
    interval = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}{noise}"
    then, now = percentile(seconds[before], 0.99), percentile(seconds[during], 0.99)
    yield Verdict(
        name=name,
        promise=promise,
        holds=not (over and shown),
        measured=f"{ratio.value:.2f} × ({interval}): {duration(then)} → {duration(now)}",
        bound=limit,
        offenders=columns.pick(during & (seconds > bound * then), most=MOST_OFFENDERS) if over and shown else (),
        detail=f"p99 of {many(int(before.sum()), 'text')} before, and of {many(int(during.sum()), 'text')} during faults.",
    )
