"""The phases of a run: calm, faults, and the moments after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise

from services.loadtest.run import Fault, Run
from services.loadtest.spans import Floats, intersection, union

RECOVERY = 4.0
"""Seconds after a fault that are not calm, where the scenario does not say."""
SLIVER = 0.1
"""Phases shorter than this are part of the next: two faults of one moment are never quite at once."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run in which the same faults are in effect, or none is. Times are those of the run."""

    name: str
    began: float
    ended: float
    calm: bool
    faults: tuple[Fault, ...]
    """Those in effect, or, after them, those that it recovers from."""
    recovering: bool = False

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def recovery(run: Run) -> float:
    """Seconds that the deployment has to recover from a fault, before it is calm again."""
    bound = run.scenario.verdicts.recovered
    return RECOVERY if bound == "off" else bound


def end(run: Run) -> float:
    """When the run was over, with the last answer that came."""
    return max([run.seconds, *(record.ended for record in run.records)])


def effect(fault: Fault, over: float) -> tuple[float, float]:
    """From when to when a fault was in effect, in a run that was ``over`` then; for no time, where it could not be done."""
    if fault.cleared is not None:
        return fault.ordered, max(fault.ordered, fault.cleared)
    return fault.ordered, fault.ordered if fault.error and fault.applied is None else max(fault.ordered, over)


def in_effect(run: Run, faults: Iterable[Fault] | None = None) -> Floats:
    """When any fault was in effect, or any of some."""
    over = end(run)
    return union(effect(fault, over) for fault in (run.faults if faults is None else faults))


def disturbed(run: Run) -> Floats:
    """When any fault was in effect, or recovered from: all that is not calm."""
    over, rest = end(run), recovery(run)
    return union((began, ended + rest) for began, ended in (effect(fault, over) for fault in run.faults))


def without_encoders(run: Run) -> Floats:
    """When certainly no encoder could compute: all that the deployment has were disabled by faults.

    Certain is a fault from when it was applied to when its end was ordered. One that ended by itself ended nobody knows when,
    and of one that met an error nobody knows how far it went: they prove nothing.
    """
    over = end(run)
    return _on_all(
        run,
        [
            (fault, fault.applied, over if fault.lifting is None else fault.lifting)
            for fault in run.faults
            if fault.disabling
            and fault.applied is not None
            and not fault.error
            and (fault.lifting is not None or fault.cleared is None)
        ],
    )


def all_affected(run: Run) -> Floats:
    """When some fault, of whatever kind, was in effect on each encoder that the deployment has."""
    over = end(run)
    return _on_all(run, [(fault, *effect(fault, over)) for fault in run.faults])


def _on_all(run: Run, times: Sequence[tuple[Fault, float, float]]) -> Floats:
    """When each encoder was hit by one of some faults, given with the times from when to when they count."""
    found: Floats | None = None
    for encoder in run.encoders:
        spans = union(
            (began, ended) for fault, began, ended in times if any(fnmatchcase(encoder, target) for target in fault.targets)
        )
        found = spans if found is None else intersection(found, spans)
    return union([]) if found is None else found


def phases(run: Run) -> list[Phase]:
    """The run from its begin to its end, cut where faults begin and end."""
    over, rest = end(run), recovery(run)
    effects = [(fault, *effect(fault, over)) for fault in run.faults]
    times = {0.0, run.seconds}
    for _, began, ended in effects:
        times |= {began, ended, ended + rest}
    cuts = sorted(time for time in times if 0 <= time <= run.seconds)
    found: list[Phase] = []
    for began, ended in pairwise(cuts):
        active = tuple(fault for fault, start, stop in effects if start <= began < stop)
        after = tuple(fault for fault, _, stop in effects if stop <= began < stop + rest)
        found.append(_phase(began, ended, active, after))
    return _renamed(_merged(found))


def _phase(began: float, ended: float, active: tuple[Fault, ...], after: tuple[Fault, ...]) -> Phase:
    if active:
        return Phase(_names(active), began, ended, False, active)
    if after:
        return Phase(f"after {_names(after)}", began, ended, False, after, recovering=True)
    return Phase("calm", began, ended, True, ())


def _names(faults: tuple[Fault, ...]) -> str:
    return " + ".join(dict.fromkeys(fault.line.partition(" for ")[0] for fault in faults))


def _merged(found: list[Phase]) -> list[Phase]:
    """Joins equal neighbours, and slivers with what follows."""
    merged: list[Phase] = []
    for phase in found:
        last = merged[-1] if merged else None
        if last is None:
            merged.append(phase)
        elif last.name == phase.name and last.calm == phase.calm:
            merged[-1] = replace(last, ended=phase.ended)
        elif last.recovering and phase.recovering:
            # One recovery, from several faults: the last that was cleared decides when it is over.
            faults = tuple({id(fault): fault for fault in (*last.faults, *phase.faults)}.values())
            merged[-1] = Phase(f"after {_names(faults)}", last.began, phase.ended, False, faults, recovering=True)
        elif last.seconds < SLIVER and not phase.calm:
            merged[-1] = replace(phase, began=last.began)
        else:
            merged.append(phase)
    return merged


def _renamed(found: list[Phase]) -> list[Phase]:
    """The first calm is called so, later ones "calm again"."""
    first = True
    for number, phase in enumerate(found):
        if phase.calm:
            found[number] = phase if first else replace(phase, name="calm again")
            first = False
    return found
