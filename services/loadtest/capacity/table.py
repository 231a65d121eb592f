"""A plan for people, as lines of text, and for machines, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from services.loadtest.capacity.model import Prediction, Times
from services.loadtest.capacity.sizing import Loss, Plan


def lines(plan: Plan) -> Iterator[str]:
    """The plan in words and figures."""
    found = plan.prediction
    yield f"{'needed' if plan.chosen else 'given'}: {_fleet(found)} ({plan.encoders_per_language:.3g} to one)"
    yield from _verdict(found)
    yield ""
    yield f"{'used':36}{'share':>10}{'all at':>20}"
    for stage in sorted(found.stages, key=lambda stage: -stage.utilisation):
        all_at = f"{_number(stage.limit)} requests/s" if math.isfinite(stage.limit) else "never"
        yield f"{stage.name:36}{stage.utilisation:10.1%}{all_at:>20}"
    yield ""
    yield f"{'time':36}{'mean':>10}{'p50':>10}{'p95':>10}{'p99':>10}"
    for name, times in (
        ("first token, all requests", found.ttft),
        ("first token, with pictures", found.ttft_pictures),
        ("first token, text alone", found.ttft_text),
        ("embeddings of a new picture", found.embedding),
    ):
        if times is not None:
            yield f"{name:36}{''.join(f'{seconds(each):>10}' for each in _all(times))}"
    yield f"{'each further token':36}{seconds(found.tpot):>10}"
    yield ""
    wire, held = found.wire, found.held
    for name, figure in (
        ("embeddings of a picture", bytes_(wire.per_picture)),
        ("embeddings on the wire", f"{bytes_(wire.embeddings)}/s"),
        ("pictures on the wire", f"{bytes_(wire.pictures)}/s"),
        ("at one encoder", f"{bytes_(wire.encoder_link)}/s"),
        ("at one language service", f"{bytes_(wire.language_link)}/s"),
        ("requests open at once", _number(held.requests)),
        ("pictures in work at one encoder", _number(held.pictures)),
        ("answers that one engine goes on with", _number(held.answers)),
        ("tokens that it keeps for them", _number(held.tokens)),
    ):
        yield f"{name:36} {figure}"
    if plan.loss is not None:
        yield ""
        yield from _lost(plan.loss)


def to_json(plan: Plan) -> str:
    """All of it. Times are in seconds, what is infinite is null."""
    found = plan.prediction
    summary = {
        "stable": found.stable,
        "saturates_first": found.busiest.name,
        "limit_rate": found.limit,
        "encoders_per_language": plan.encoders_per_language,
    }
    whole = {
        "chosen": plan.chosen,
        **summary,
        "prediction": asdict(found),
        "loss": None if plan.loss is None else asdict(plan.loss),
        "inputs": plan.inputs.model_dump(mode="json"),
    }
    return json.dumps(_finite(whole), indent=2, allow_nan=False)


def seconds(value: float) -> str:
    """A time with its unit."""
    if math.isinf(value):
        return "no end"
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def bytes_(value: float) -> str:
    """A number of bytes with its unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"


def _verdict(found: Prediction) -> Iterator[str]:
    busiest = found.busiest
    if found.stable:
        yield f"{_number(found.rate)} requests/s; {busiest.name} run out first, at {_number(found.limit)} requests/s"
    else:
        yield (
            f"{_number(found.rate)} requests/s are too many: {busiest.name} can do {_number(found.limit)}; "
            "queues grow until requests are refused or run out of time"
        )


def _lost(loss: Loss) -> Iterator[str]:
    yield "one encoder fewer"
    if loss.after is None:
        yield "  none is left: new pictures get 503, the rest goes on"
        return
    after = loss.after
    state = f"first token p95 {seconds(after.ttft.p95)}" if after.stable else "too few for this load"
    used = next(stage.utilisation for stage in after.stages if stage.name == "encoders")
    yield f"  the rest is used {used:.1%}: {state}"
    for how, pictures, made_up in (
        ("it dies", loss.crash, loss.crash_seconds),
        ("it hangs", loss.hang, loss.hang_seconds),
    ):
        until = f"made up for within {seconds(made_up)}" if math.isfinite(made_up) else "never made up for"
        yield f"  {how}: {_number(pictures)} pictures move to others, {until}"


def _fleet(found: Prediction) -> str:
    return (
        f"{found.encoders} {'encoder' if found.encoders == 1 else 'encoders'}, "
        f"{found.languages} language {'service' if found.languages == 1 else 'services'}"
    )


def _all(times: Times) -> tuple[float, ...]:
    return times.mean, times.p50, times.p95, times.p99


def _number(value: float) -> str:
    if math.isinf(value):
        return "without end"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
