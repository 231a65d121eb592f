"""Runs made by hand, and one as a pair would have made it: what is judged and reported in tests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from services.loadtest.run import End, Fault, Generator, Kind, Leftover, Record, Run, Sample
from services.loadtest.scenario import Scenario

ENCODERS = ("encoder-1", "encoder-2")


def scenario(
    lasts: float = 40.0, timeline: tuple[str, ...] = (), mix: dict[str, float] | None = None, **verdicts: Any
) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "made-up",
            "title": "Made up",
            "about": "For tests.",
            "lasts": lasts,
            "timeline": timeline,
            "traffic": {"rate": 10, "mix": mix or {"text": 1, "image": 1}},
            "verdicts": verdicts,
        }
    )


def record(sent: float, took: float = 0.1, kind: Kind = Kind.IMAGE, **changes: Any) -> Record:
    """A whole 200, unless changed."""
    status, code = (400, "invalid_media") if kind is Kind.BROKEN else (200, "ok")
    made = Record(
        id=f"load-{sent:.3f}-{kind}",
        kind=kind,
        streamed=False,
        fresh=kind not in (Kind.TEXT, Kind.REPEATED),
        deadline=10.0,
        due=sent,
        sent=sent,
        first=sent + took if status == 200 else None,
        ended=sent + took,
        end=End.ANSWERED,
        status=status,
        code=code,
        answered_id=changes.get("id", f"load-{sent:.3f}-{kind}"),
        right=True if status == 200 else None,
    )
    return replace(made, **changes)


def text(sent: float, took: float = 0.02, **changes: Any) -> Record:
    return record(sent, took, Kind.TEXT, **changes)


def refused(sent: float, took: float = 0.05, code: str = "encoder_failed", **changes: Any) -> Record:
    """A 503 as the contract has it, unless changed."""
    contract = {"status": 503, "code": code, "first": None, "retry_after": 1.0, "right": None, "detail": "it was not there"}
    return record(sent, took, **{**contract, **changes})


def fault(
    ordered: float, cleared: float | None, target: str = "encoder-1", action: str = "kill", *, lag: float = 0.0, **changes: Any
) -> Fault:
    """A disabling fault, applied ``lag`` seconds after it was ordered, and lifted as long before it was cleared."""
    made = Fault(
        line=f"{action} {target}",
        action=action,
        targets=(target,),
        disabling=True,
        ordered=ordered,
        applied=ordered + lag,
        lifting=None if cleared is None else cleared - lag,
        cleared=cleared,
    )
    return replace(made, **changes)


def run(records: list[Record], faults: list[Fault] | None = None, **changes: Any) -> Run:
    """A run of 40 s with two encoders, unless changed."""
    asked = changes.pop("scenario", None) or scenario()
    made = Run(
        scenario=asked,
        target="http://127.0.0.1:8000",
        model="demo_model",
        began="2025-01-02T03:04:05+00:00",
        seconds=asked.lasts,
        semantics=True,
        encoders=ENCODERS,
        records=records,
        faults=faults or [],
        samples=[],
        generator=Generator(processes=1, cpu=0.2, late_p99=0.003, skipped=0),
        leftovers=[Leftover("requests that wait for embeddings", 0)],
    )
    return replace(made, **changes)


def calm_run(**changes: Any) -> Run:
    """All promises hold: twenty texts and ten pictures a second, and no fault."""
    records = [each for at in range(5, 395) for each in (text(at / 10), record(at / 10 + 0.02), text(at / 10 + 0.05))]
    return run(changes.pop("records", records), **changes)


def crash_run(rate: float = 30.0, lasts: float = 40.0, seed: int = 1, honest: bool = True) -> Run:
    """Two encoders are killed one after the other and come back, as in the scenario encoder-crash; all promises hold.

    Without ``honest``, the pair breaks most of its promises now and then.
    """
    random_ = random.Random(seed)
    first, second, back = lasts * 0.25, lasts * 0.35, lasts * 0.45
    faults = [
        fault(first, back + 1.3, "encoder-1", lag=0.02, lifting=back),
        fault(second, back + 1.7, "encoder-2", lag=0.02, lifting=back),
    ]
    asked = scenario(
        lasts,
        tuple(
            f"{at:g}s {what}" for at, what in ((first, "kill encoder-1"), (second, "kill encoder-2"), (back, "start encoder-*"))
        ),
        {"text": 4, "image": 4, "images": 1, "repeated": 1, "broken": 0.3},
        must_see=("encoder_failed", "encoder_unavailable"),
        first_503=0.5,
    )
    records, at = list[Record](), 0.0
    while (at := at + random_.expovariate(rate)) < lasts:
        records.append(_crashing(at, random_, second + 0.02, back + 1.3, len(records), honest))
    samples = [
        Sample(tick / 2, float(random_.randrange(4)), 2.0 - (first < tick / 2 < back + 1.3) - (second < tick / 2 < back + 1.7))
        for tick in range(int(lasts * 2))
    ]
    return run(records, faults, scenario=asked, samples=samples, notes=["2 cores, no GPU", "caches are off"])


def _crashing(at: float, random_: random.Random, down: float, up: float, number: int, honest: bool) -> Record:
    kind = random_.choices(list(Kind), (4, 4, 1, 1, 0, 0.3))[0]
    took = random_.lognormvariate(-3.6 if kind is Kind.TEXT else -2.2, 0.3)
    streamed, name = random_.random() < 0.5, f"load-{number:06}"
    if not honest and random_.random() < 0.004:
        return record(at, 10.0, kind, id=name, end=End.UNANSWERED, status=0, code="", first=None, right=None, detail="gave up")
    if random_.random() < 0.02:
        return record(at, took / 2, kind, id=name, end=End.HUNG_UP, status=0, code="", first=None, right=None)
    if kind in (Kind.IMAGE, Kind.IMAGES) and at < down < at + took:
        return refused(at, down - at + 0.05, kind=kind, id=name, streamed=streamed)
    if kind in (Kind.IMAGE, Kind.IMAGES) and down <= at < up and (honest or random_.random() < 0.95):
        return refused(at, 0.004 + took / 50, "encoder_unavailable", kind=kind, id=name, streamed=streamed)
    made = record(at, took, kind, id=name, answered_id=name, streamed=streamed)
    if made.status == 200:
        made = replace(made, first=at + took * (0.4 if streamed else 1))
        if not honest and kind is not Kind.TEXT and random_.random() < 0.005:
            made = replace(made, right=False, said="A red circle.", expected="A blue square at the top left.")
    return made
