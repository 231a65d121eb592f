"""How soon a failure is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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
    """Of what several faults touched, the longest wait; of all others, nothing that means anything."""

    @classmethod
    def of(cls, evidence: Evidence, faults: list[Fault]) -> Waits:
        columns = evidence.columns
        told = np.where(np.isnan(columns.first) | (columns.status != 200), columns.ended, columns.first)
        seconds = np.full(len(told), -np.inf)
        for fault in faults:
            assert fault.applied is not None
            until = next((at for at in (fault.lifting, fault.cleared) if at is not None), np.inf)
            touched = (columns.sent < until) & (told >= fault.applied)
            waited = np.where(touched, told - np.maximum(columns.sent, fault.applied), -np.inf)
            seconds = np.maximum(seconds, waited)
        asked = columns.due & columns.answered & columns.pictures & (seconds > -np.inf)
        return cls(asked & columns.unavailable, asked & columns.fresh & columns.success, seconds)


def failed_fast(evidence: Evidence) -> Iterator[Verdict]:
    """A fault that disables encoders becomes an answer soon: a 503, or one that another encoder made.

    Of the 503s counts the time from the request, or from the fault where that came later; of the 200s the same to the first
    token, and they may take as long again as in calm. Where no encoder is left, the first 503 must come in time as well.
    """
    bound, columns, faults = evidence.bounds.first_503, evidence.columns, evidence.run.faults
    if bound == "off" or not faults:
        return
    name, promise = "failed_fast", "A disabled encoder soon becomes a 503, or another encoder's answer."
    within = f"p99 at most {limit(bound)} after fault and request"
    disabling = [fault for fault in faults if fault.disabling and fault.applied is not None]
    if not disabling:
        yield Verdict(name, promise, True, "no fault disabled an encoder", within)
        return
    waits, firsts = Waits.of(evidence, disabling), _first_refusals(evidence)
    refused, moved = percentile(waits.seconds[waits.refused], 0.99), percentile(waits.seconds[waits.taken_over], 0.99)
    usual = _usual(evidence)
    holds = not (refused > bound or moved > bound + usual or any(each > bound for each in firsts))
    slow = (waits.refused & (waits.seconds > bound)) | (waits.taken_over & (waits.seconds > bound + usual))
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
        detail=f"{many(len(disabling), 'disabling fault')}; a 200 may take {duration(usual)} longer, calm's p99.",
    )


def _usual(evidence: Evidence) -> float:
    """Seconds that the first token of a picture's answer takes in calm, 99th percentile; 0 where there was none."""
    columns = evidence.columns
    calm = columns.pictures & columns.success & evidence.wholly_calm & ~np.isnan(columns.first)
    return percentile((columns.first - columns.sent)[calm], 0.99) if calm.any() else 0.0


def _first_refusals(evidence: Evidence) -> list[float]:
    """For each time without any encoder, how long the first 503 took from when a request waited for one."""
    columns, found = evidence.columns, list[float]()
    asked = columns.due & columns.pictures & columns.fresh
    for began, ended in evidence.no_encoder:
        open_then = asked & (columns.sent < ended) & (columns.ended >= began)
        refused = open_then & columns.unavailable
        if refused.any():
            found.append(float(columns.ended[refused].min() - max(began, columns.sent[open_then].min())))
    return found
