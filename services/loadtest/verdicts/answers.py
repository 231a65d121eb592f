"""What answers must be: there in time, right, and never a 200 without an encoder."""

from __future__ import annotations

import numpy as np

from services.loadtest.spans import end_of
from services.loadtest.verdicts.verdict import MOST_OFFENDERS, Evidence, Verdict
from services.loadtest.wording import duration, limit, many, share


def answered(evidence: Evidence) -> Verdict:
    """Every request that did not hang up gets one answer by its deadline."""
    columns, grace = evidence.columns, evidence.bounds.grace
    past = columns.seconds - columns.deadline
    missing = columns.due & ~columns.answered
    late = columns.due & columns.answered & (past > grace)
    good = int((columns.due & ~missing & ~late).sum())
    due = int(columns.due.sum())
    detail = f"{missing.sum():,} without an answer, {late.sum():,} too late." if good < due else ""
    if not due:
        detail = "No request was sent: raise the rate or last longer."
    slowest = f"; the slowest took {duration(float(columns.seconds[columns.due].max()))}" if due else ""
    return Verdict(
        name="answered",
        promise="Every request gets one answer by its deadline.",
        holds=good == due > 0,
        measured=f"{share(good, due)} answered in time{slowest}",
        bound=f"all, within the deadline and {limit(grace)}",
        offenders=columns.pick(missing | late, np.where(missing, np.inf, past), MOST_OFFENDERS),
        detail=detail,
    )


def right(evidence: Evidence) -> Verdict:
    """Answers are about their own pictures."""
    columns, bound = evidence.columns, evidence.bounds.wrong
    name, promise, allowed = "right", "Every 200 is about its own pictures.", f"at most {bound} wrong"
    if not evidence.run.semantics:
        return Verdict(name, promise, True, "not judged", allowed, detail="Semantics are off: what was said was not looked at.")
    judged = columns.judged & (columns.status == 200)
    unseen = bool(columns.success.any()) and not judged.any()
    return Verdict(
        name=name,
        promise=promise,
        holds=int(columns.wrong.sum()) <= bound and not unseen,
        measured=f"{columns.wrong.sum():,} wrong of {judged.sum():,} judged",
        bound=allowed,
        offenders=columns.pick(columns.wrong, most=MOST_OFFENDERS),
        detail="There are answers, but none was judged: run without semantics, or against the demo model." if unseen else "",
    )


def no_silent_answer(evidence: Evidence) -> Verdict:
    """While no encoder can compute, no new picture can be answered.

    Once is enough: a token about a picture that was sent and answered in such a time is made up.
    """
    columns = evidence.columns
    until = end_of(evidence.no_encoder, columns.sent)
    asked = columns.pictures & columns.fresh & ~np.isnan(until)
    told = np.where(np.isnan(columns.first), columns.ended, columns.first)
    with np.errstate(invalid="ignore"):
        lies = asked & (columns.status == 200) & (~np.isnan(columns.first) | columns.success) & (told < until)
    name, promise, bound = "no_silent_answer", "No 200 about a new picture while no encoder can compute.", "none"
    if not len(evidence.no_encoder):
        known = "there was no time without any encoder" if evidence.run.encoders else "not judged: the encoders are not known"
        return Verdict(name, promise, True, known, bound)
    length = float((evidence.no_encoder[:, 1] - evidence.no_encoder[:, 0]).sum())
    return Verdict(
        name=name,
        promise=promise,
        holds=not lies.any(),
        measured=f"{lies.sum():,} of {many(int(asked.sum()), 'new picture')} sent in {duration(length)} without any encoder",
        bound=bound,
        offenders=columns.pick(lies, until - told, MOST_OFFENDERS),
    )


def honest_failures(evidence: Evidence) -> Verdict:
    """Every failure is one of the contract's."""
    columns, codes = evidence.columns, np.array(evidence.bounds.codes, dtype=np.str_)
    answers, known = columns.due & columns.answered, np.isin(columns.code, codes)
    status, broken, event = columns.status, columns.broken, (columns.status == 200) & (columns.code != "ok")
    refused = status == 503
    with np.errstate(invalid="ignore"):
        soon = refused & ~(columns.retry_after >= 1)
    sins = {
        "a 503 with another code than the contract's": refused & ~known,
        "a 503 without Retry-After of a second or more": soon,
        "a 400 of a request in which nothing is wrong": (status == 400) & ~broken,
        "a 200 about bytes that are no picture": (status == 200) & ~event & broken,
        "a stream that ended with another code than the contract's": event & ~known,
        "an error event before any token, rather than a status": event & np.isnan(columns.first),
        "another status than 200, 400 and 503": ~np.isin(status, (200, 400, 503)),
    }
    counts = [(name, int((answers & which).sum())) for name, which in sins.items()]
    guilty = answers & np.logical_or.reduce(list(sins.values()))
    failures = int((answers & ((status != 200) | event)).sum())
    return Verdict(
        name="honest_failures",
        promise="Every failure is a 503 with a code and Retry-After, or a 400 of what is no picture.",
        holds=not guilty.any(),
        measured=f"{guilty.sum():,} against the contract, of {many(failures, 'failure')}",
        bound="none",
        offenders=columns.pick(guilty, most=MOST_OFFENDERS),
        detail=" ".join(f"{count:,} × {name}." for name, count in counts if count),
    )
