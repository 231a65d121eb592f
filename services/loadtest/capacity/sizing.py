"""The plan: how many encoders and language services a load needs, at which load they break, and what a lost encoder costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.loadtest.capacity.inputs import Inputs
from services.loadtest.capacity.model import Prediction, predict

_MOST = 100_000
"""Of each; more are not looked for."""
_ENCODER_STAGES = ("encoders", "links of encoders")


@dataclass(frozen=True, slots=True)
class Loss:
    """One encoder fewer. ``after`` is what the rest then does, None where there is no rest. ``crash`` and ``hang`` are the
    pictures that must be sent to others, if it dies or if it stops: those that it had, and those that come to it until it is
    known; for each the seconds until the rest has made up for them, infinite where it cannot."""

    after: Prediction | None
    crash: float
    crash_seconds: float
    hang: float
    hang_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. ``chosen`` says whether the numbers of encoders and language services were asked for."""

    inputs: Inputs
    chosen: bool
    prediction: Prediction
    loss: Loss | None
    """None where no request needs an encoder."""

    @property
    def encoders_per_language(self) -> float:
        return self.prediction.encoders / self.prediction.languages


def plan(inputs: Inputs) -> Plan:
    """What the fleet of the inputs does, or the smallest that keeps to the goals.

    Raises:
        ValueError: no fleet keeps to them, or what would is more than is looked for.
    """
    fleet = inputs.fleet
    chosen = fleet.encoders is None or fleet.languages is None
    prediction = choose(inputs) if chosen else predict(inputs, fleet.encoders or 1, fleet.languages or 1)
    asks = inputs.traffic.mean_pictures * (1 - inputs.traffic.repeated) > 0
    return Plan(inputs, chosen, prediction, lost(inputs, prediction) if asks else None)


def choose(inputs: Inputs) -> Prediction:
    """The smallest fleet that keeps to the goals, with the encoders to spare. Numbers that are given stay.

    First as many as no stage is used more than it may be; then, as long as the first token comes too late, one in thirty more
    of that of which more help more.

    Raises:
        ValueError: as ``plan``.
    """
    fleet, goals = inputs.fleet, inputs.goals
    one = predict(inputs, 1, 1)
    used = {True: 0.0, False: 0.0}
    for stage in one.stages:
        encoder = stage.name in _ENCODER_STAGES
        used[encoder] = max(used[encoder], stage.utilisation)
    encoders = fleet.encoders or _enough(used[True], goals.utilisation)
    languages = fleet.languages or _enough(used[False], goals.utilisation)
    found = predict(inputs, encoders, languages)
    if goals.ttft_p95 is not None:
        found = _faster(inputs, found, goals.ttft_p95)
    spare = 0 if fleet.encoders or not used[True] else goals.spare_encoders
    return predict(inputs, found.encoders + spare, found.languages) if spare else found


def lost(inputs: Inputs, whole: Prediction) -> Loss:
    """What the loss of one of the encoders costs."""
    failure, encoders = inputs.failure, whole.encoders
    pictures = inputs.traffic.mean_pictures * (1 - inputs.traffic.repeated)
    arriving = whole.rate * pictures / encoders
    crash, hang = (whole.held.pictures + arriving * seconds for seconds in (failure.crash_seconds, failure.hang_seconds))
    if encoders == 1:
        return Loss(None, crash, math.inf, hang, math.inf)
    after = predict(inputs, encoders - 1, whole.languages)
    limit = next(stage.limit for stage in after.stages if stage.name == "encoders")
    spare = (limit - whole.rate) * pictures
    times = [count / spare if spare > 0 else math.inf for count in (crash, hang)]
    return Loss(after, crash, times[0], hang, times[1])


def _enough(used: float, most: float) -> int:
    """So many that what one is used, shared by them, is at most ``most``.

    Raises:
        ValueError: they are too many.
    """
    if used > _MOST * most:
        raise ValueError(f"this load needs more than {_MOST} encoders or language services")
    return max(1, math.ceil(used / most - 1e-9))


def _faster(inputs: Inputs, found: Prediction, goal: float) -> Prediction:
    """More of both until the first token is early enough. Raises ValueError where more do not help."""
    fleet = inputs.fleet
    while found.ttft.p95 > goal:
        counts = found.encoders, found.languages
        more = [count + max(1, count // 30) for count in counts]
        tried = [
            predict(inputs, *sizes)
            for sizes, given in (
                ((more[0], counts[1]), fleet.encoders),
                ((counts[0], more[1]), fleet.languages),
                ((more[0], more[1]), fleet.encoders or fleet.languages),
            )
            if not given and max(sizes) <= _MOST
        ]
        better = min(tried[:2], key=lambda each: each.ttft.p95, default=found)
        if not better.ttft.p95 < found.ttft.p95 and len(tried) == 3:
            better = tried[2]
        if not better.ttft.p95 < found.ttft.p95 * (1 - 1e-4):
            raise ValueError(
                f"no number of services brings the first token within {goal:g} s for 95 % of requests: with "
                f"{found.encoders} encoders and {found.languages} language services it takes {found.ttft.p95:.3g} s, "
                "and more of them do not help; make the goal longer, or the services faster"
            )
        found = better
    return found
