"""How soon a failure is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from services.loadtest.columns import Columns
from services.loadtest.run import Fault
from services.loadtest.spans import Floats, Mask
from services.loadtest.statistics import percentile
from services.loadtest.verdicts.verdict import MOST_OFFENDERS, Evidence, Verdict
from services.loadtest.wording import duration, limit, many


@dataclass(frozen=True, slots=True)
class Waits:
    """How long requests waited that a fault touched, counted from the fault where they were sent before it.

    ``refused`` got a 503, ``taken_over`` a 200 by another encoder, of which counts when the first token came.
    """

    refused: Mask
    taken_over: Mask
    seconds: Floats
    """Of what several faults touched, the longest wait; of all others, minus infinity."""

    @classmethod
    def of(cls, columns: Columns, faults: Iterable[Fault]) -> Waits:
        told = np.where(np.isnan(columns.first) | (columns.status != 200), columns.ended, columns.first)
        longest = float((told - columns.sent).max(initial=0.0))
        seconds = np.full(len(told), -np.inf)
        for fault in faults:
            assert fault.applied is not None
            until = next((at for at in (fault.lifting, fault.cleared) if at is not None), np.inf)
            rows = columns.sent_between(fault.applied - longest, until)
            waited = told[rows] - np.maximum(columns.sent[rows], fault.applied)
            seconds[rows] = np.maximum(seconds[rows], np.where(waited >= 0, waited, -np.inf))
        asked = columns.due & columns.answered & columns.pictures & (seconds > -np.inf)
        return cls(asked & columns.unavailable, asked & columns.fresh & columns.success, seconds)


def failed_fast(evidence: Evidence) -> Iterator[Verdict]:
    """A fault that disables encoders becomes an answer soon: a 503, or one that another encoder made.

    Of the 503s counts the time from the request, or from the fault where that came later; of the 200s the same to the first
    token, and they may take as long again as their kind does in calm. Where no encoder is left, the first 503 must come in time
    as well.
    """
    bound, columns, faults = evidence.bounds.first_503, evidence.columns, evidence.run.faults
    if bound == "off" or not faults or not evidence.run.scenario.traffic.mix.new_pictures:
        return
    name, promise = "failed_fast", "A disabled encoder soon becomes a 503, or another encoder's answer."
    within = f"p99 at most {limit(bound)} after fault and request"
    disabling = [fault for fault in faults if fault.disabling and fault.of_encoders and fault.applied is not None]
    if not disabling:
        yield Verdict(name, promise, True, "no fault disabled an encoder", within)
        return
    waits, firsts, usual = Waits.of(columns, disabling), _first_refusals(evidence), _usual(evidence)
    if not (waits.refused | waits.taken_over).any():
        detail = "No picture was asked about that could tell: raise the rate, or let the faults last longer."
        yield Verdict(name, promise, False, "nothing to judge by", within, detail=detail)
        return
    beyond = waits.seconds - usual
    refused, moved = percentile(waits.seconds[waits.refused], 0.99), percentile(waits.seconds[waits.taken_over], 0.99)
    late = percentile(beyond[waits.taken_over], 0.99) > bound
    holds = not (refused > bound or late or any(each > bound for each in firsts))
    slow = (waits.refused & (waits.seconds > bound)) | (waits.taken_over & (beyond > bound))
    said = [f"503s p99 {duration(refused)} (of {waits.refused.sum():,})" if waits.refused.any() else "no 503: others took over"]
    said += [f"the first {duration(max(firsts))} after no encoder was left"] if firsts else []
    said += [f"200s p99 {duration(moved)} to the first token (of {waits.taken_over.sum():,})"] if waits.taken_over.any() else []
    yield Verdict(
        name=name,
        promise=promise,
        holds=holds,
        measured="; ".join(said),
        bound=within,
        offenders=() if holds else columns.pick(slow, waits.seconds, MOST_OFFENDERS),
        detail=f"{many(len(disabling), 'disabling fault')}; a 200 may take as much longer as its kind does in calm (p99).",
    )


def _usual(evidence: Evidence) -> Floats:
    """For each request, seconds that the first token of its kind takes in calm, 99th percentile; of all where its kind has
    none, and 0 where there was none at all."""
    columns = evidence.columns
    calm = columns.pictures & columns.success & evidence.wholly_calm
    took = columns.first - columns.sent
    usual = np.full(len(took), percentile(took[calm], 0.99) if calm.any() else 0.0)
    for kind in np.unique(columns.kind[calm]):
        of_kind = columns.kind == kind
        usual[of_kind] = percentile(took[calm & of_kind], 0.99)
    return usual


def _first_refusals(evidence: Evidence) -> list[float]:
    """For each time without any encoder, how long the first 503 took from when a request waited for one.

    What got its 200 all the same in that time did not wait for an encoder: it had its embeddings before.
    """
    columns, found = evidence.columns, list[float]()
    asked = columns.due & columns.pictures & columns.fresh
    longest = float(columns.seconds.max(initial=0.0))
    for began, ended in evidence.no_encoder:
        rows = columns.sent_between(began - longest, ended)
        waited = asked[rows] & (columns.ended[rows] >= began) & ~(columns.success[rows] & (columns.ended[rows] < ended))
        refused = waited & columns.unavailable[rows]
        if refused.any():
            first = columns.ended[rows][refused].min()
            found.append(float(first - max(began, columns.sent[rows][waited].min())))
    return found
