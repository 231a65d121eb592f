"""How much must succeed: in calm, in faults, of texts; and how fast."""

from __future__ import annotations

from collections.abc import Iterator

from services.loadtest.spans import Mask, touched
from services.loadtest.statistics import percentile
from services.loadtest.verdicts.verdict import MOST_OFFENDERS, Evidence, Verdict
from services.loadtest.wording import duration, limit, many, share


def success(evidence: Evidence) -> Iterator[Verdict]:
    """Calm, survived faults, texts, and calm's p99, each where the scenario wants it."""
    columns, bounds = evidence.columns, evidence.bounds
    if bounds.calm_success != "off":
        yield _share(
            evidence,
            name="calm",
            promise="In calm, requests succeed.",
            bound=bounds.calm_success,
            chosen=evidence.wholly_calm,
            none='No request was wholly in calm: leave more time without faults, or set calm_success = "off".',
        )
    if bounds.fault_success != "off":
        yield _share(
            evidence,
            name="faults_survived",
            promise="Requests with pictures succeed while faults are in effect: others take over.",
            bound=bounds.fault_success,
            chosen=columns.pictures & touched(evidence.faulty, columns.sent, columns.ended),
            none='No picture was asked about while a fault was in effect: raise the rate, or set fault_success = "off".',
        )
    if bounds.text_success != "off" and evidence.run.scenario.traffic.mix.text:
        yield _share(
            evidence,
            name="texts_go_on",
            promise="Texts succeed, at any time.",
            bound=bounds.text_success,
            chosen=columns.text,
            none="No text was sent: raise the rate or last longer.",
        )
    if bounds.p99 != "off":
        yield _p99(evidence, bounds.p99)


def _share(evidence: Evidence, *, name: str, promise: str, bound: float, chosen: Mask, none: str) -> Verdict:
    columns = evidence.columns
    asked = columns.due & chosen
    good, all_of_them = int((asked & columns.ok).sum()), int(asked.sum())
    return Verdict(
        name=name,
        promise=promise,
        holds=all_of_them > 0 and good >= bound * all_of_them - 1e-9,
        measured=share(good, all_of_them),
        bound="all" if bound == 1 else f"at least {bound * 100:g} %",
        offenders=columns.pick(asked & ~columns.ok, most=MOST_OFFENDERS),
        detail="" if all_of_them else none,
    )


def _p99(evidence: Evidence, bound: float) -> Verdict:
    columns = evidence.columns
    calm = columns.success & columns.due & evidence.wholly_calm
    found = percentile(columns.seconds[calm], 0.99)
    return Verdict(
        name="p99",
        promise="In calm, answers are fast.",
        holds=found <= bound,
        measured=f"p99 {duration(found)} of {many(int(calm.sum()), 'answer')}",
        bound=f"p99 at most {limit(bound)}",
        offenders=columns.pick(calm & (columns.seconds > bound), most=MOST_OFFENDERS) if found > bound else (),
        detail="" if calm.any() else 'No request succeeded wholly in calm: leave time without faults, or set p99 = "off".',
    )
