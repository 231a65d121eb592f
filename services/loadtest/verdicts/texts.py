"""Whether texts notice that encoders fail."""

from __future__ import annotations

from collections.abc import Iterator

from services.loadtest.phases import in_effect
from services.loadtest.spans import touched
from services.loadtest.statistics import p99_ratio, percentile
from services.loadtest.verdicts.verdict import MOST_OFFENDERS, Evidence, Verdict
from services.loadtest.wording import duration, many

FEWEST = 50
"""Texts on either side, below which a p99 says nothing."""
SHOWN = 0.025
"""Chance, below which a ratio past its bound is taken for shown."""


def texts_unnoticed(evidence: Evidence) -> Iterator[Verdict]:
    """p99 of texts while faults of encoders are in effect against that of all calm, before, between and after them: a machine
    that is busier at one time than at another is so for both.

    What a surge of load, or a fault of the language service itself, meanwhile does to texts is not the encoders' doing.

    A p99 of some hundred texts is noisy. It fails only where the ratio is above the bound and that is hardly by chance; where
    it may as well be, ``measured`` says so.
    """
    bound, columns, faults = evidence.bounds.text_p99_ratio, evidence.columns, evidence.run.faults
    ours = [fault for fault in faults if fault.of_encoders]
    if bound == "off" or not ours or not evidence.run.scenario.traffic.mix.text:
        return
    name, promise = "texts_unnoticed", "Texts do not notice encoder failures."
    limit = f"p99 at most {bound:g} × that in calm"
    texts = columns.text & columns.ok
    others = in_effect(evidence.run, [fault for fault in faults if not fault.of_encoders])
    during = texts & touched(in_effect(evidence.run, ours), columns.sent, columns.ended)
    during &= ~touched(others, columns.sent, columns.ended)
    calm = texts & evidence.wholly_calm
    fewest = min(int(during.sum()), int(calm.sum()))
    if fewest < FEWEST:
        part = "during faults of encoders alone" if fewest == during.sum() else "in calm"
        detail = f"{many(fewest, 'text')} succeeded {part}; it takes {FEWEST} on both sides."
        measured = f'too few texts to say ({fewest}): raise the rate, last longer, or set text_p99_ratio = "off"'
        yield Verdict(name, promise, False, measured, limit, detail=detail)
        return
    seconds = columns.seconds
    ratio = p99_ratio(seconds[during], columns.sent[during], seconds[calm], columns.sent[calm], bound)
    over, shown = ratio.value > bound, ratio.chance <= SHOWN
    chance = f" (p = {ratio.chance:.2g}{'' if shown else ': not shown to exceed'})" if over else ""
    then, now = percentile(seconds[calm], 0.99), percentile(seconds[during], 0.99)
    yield Verdict(
        name=name,
        promise=promise,
        holds=not (over and shown),
        measured=f"{ratio.value:.2f} ×{chance}: {duration(then)} → {duration(now)}",
        bound=limit,
        offenders=columns.pick(during & (seconds > bound * then), most=MOST_OFFENDERS) if over and shown else (),
        detail=f"p99 of {many(int(calm.sum()), 'text')} in calm, and of {many(int(during.sum()), 'text')} during faults.",
    )
