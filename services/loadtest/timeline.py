"""Carries out a scenario's timeline, and records what was in effect when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from threading import Event, Lock, Thread
from typing import Protocol

from services.loadtest.deployment import CannotDo, Deployment
from services.loadtest.deployment.verbs import ENDINGS, UNDONE_BY, disabling, ended, is_kind
from services.loadtest.run import Fault
from services.loadtest.scenario import Action

RECOVERY = 60.0
"""Seconds in which a part must say that it is up, after what was done to it was undone."""
_LOOK = 0.03


class Stop(Protocol):
    """An event that ends a run early."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class _State(Enum):
    ORDERED = auto()
    FAILED = auto()  # it may have been done by half, and is undone like the others
    APPLIED = auto()
    LIFTING = auto()
    OVER = auto()


@dataclass(eq=False, slots=True)
class _Hit:
    """One fault, as far as it concerns one of its targets."""

    fault: Fault
    part: str
    handle: str = ""
    state: _State = _State.ORDERED

    @property
    def going_on(self) -> bool:
        return self.state in (_State.APPLIED, _State.FAILED)


class Timeline:
    """Does to a deployment what the actions say, when they say it. ``clock`` gives the seconds since the load began.

    What is done to one part is done in order, each thing when the one before is; what is done to different parts does not wait
    for each other, and nothing waits for a part to come up again. A line is one fault: in effect when it is on all its targets,
    lifted from when the first of them is freed, and cleared when all are and say that they are up.
    """

    def __init__(
        self, actions: Sequence[Action], deployment: Deployment, clock: Callable[[], float], recovery: float = RECOVERY
    ) -> None:
        self.faults: list[Fault] = []
        """All so far, in the order of their beginning; they are filled in as things go on."""
        self._actions = actions
        self._deployment = deployment
        self._clock = clock
        self._recovery = recovery
        self._hits: list[_Hit] = []
        self._lock = Lock()
        self._last: dict[str, Event] = {}
        self._threads: list[Thread] = []

    def run(self, stop: Stop) -> None:
        """Orders everything at its time; returns when all is ordered, or ``stop`` is set. No failure is raised: faults tell."""
        begun: dict[int, list[_Hit]] = {}
        for at, ends, number, action in self._plan():
            while not stop.is_set() and (left := at - self._clock()) > 0:
                stop.wait(min(left, 1.0))
            if stop.is_set():
                return
            if ends:
                for hit in begun[number]:
                    self._step(hit.part, partial(self._expire, hit))
            else:
                begun[number] = self._begin(action)

    def finish(self) -> None:
        """Undoes what is still in effect, and returns when all is as it was found, or cannot be made so. For after ``run``."""
        for part in self._deployment.parts:
            self._step(part, partial(self._free, part))
        for thread in self._threads:
            thread.join()

    def current(self, at: float) -> str:
        """What is in effect at a time, for a progress line."""
        with self._lock:
            found = [_told(fault, at) for fault in self.faults if fault.ordered <= at and not _over(fault, at)]
        return " + ".join(dict.fromkeys(found)) or "calm"

    def _plan(self) -> list[tuple[float, bool, int, Action]]:
        """When what begins and ends. Of what is due at one time, what ends comes first."""
        begins = [(action.at, False, number, action) for number, action in enumerate(self._actions)]
        ends = [(at + action.lasts, True, number, action) for at, _, number, action in begins if action.lasts is not None]
        return sorted([*begins, *ends], key=lambda each: (each[0], not each[1], each[2]))

    def _begin(self, action: Action) -> list[_Hit]:
        parts = self._deployment.targets(action)
        if action.verb in ENDINGS:
            for part in parts:
                self._step(part, partial(self._end, part, action.verb, action.options, action.line))
            return []
        fault = Fault(action.line, action.verb, parts, disabling(action.verb, action.options), self._clock())
        hits = [_Hit(fault, part) for part in parts]
        with self._lock:
            self.faults.append(fault)
            self._hits += hits
        work = self._restart if action.verb == "restart" else self._apply
        for hit in hits:
            self._step(hit.part, partial(work, hit, action.options))
        return hits

    def _step(self, part: str, work: Callable[[], list[_Hit] | None]) -> None:
        """Has ``work`` done when all that was ordered for the part before is, and then waits for the part to come up.

        Work returns what it has lifted, or None where there is nothing to wait for.
        """
        before, done = self._last.get(part), Event()
        self._last[part] = done

        def go() -> None:
            if before is not None:
                before.wait()
            try:
                lifted = work()
            finally:
                done.set()
            if lifted is not None:
                self._await_recovery(part, lifted)

        thread = Thread(target=go, name=f"loadtest-{part}", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _apply(self, hit: _Hit, options: Mapping[str, str]) -> None:
        """Makes a fault take effect on a target."""
        verb = "stop" if hit.fault.action == "restart" else hit.fault.action
        try:
            hit.handle = self._deployment.carry_out(verb, hit.part, options)
        except Exception as error:
            hit.state = _State.FAILED
            self._fail([hit], error)
            return
        with self._lock:
            hit.state = _State.APPLIED
            if all(each.state is _State.APPLIED for each in self._hits if each.fault is hit.fault):
                hit.fault.applied = self._clock()

    def _restart(self, hit: _Hit, options: Mapping[str, str]) -> list[_Hit] | None:
        """Stopping and starting, one after the other, tells when it is gone and when it comes."""
        self._apply(hit, options)
        return self._end(hit.part, "restart", {}, hit.fault.line)

    def _expire(self, hit: _Hit) -> list[_Hit] | None:
        """The end of a fault's own time, where nothing else has ended it."""
        verb = hit.fault.action
        if not hit.going_on:
            return None
        if is_kind(verb) and verb != "crash":
            return self._lift([hit], partial(self._deployment.end, verb, hit.part, hit.handle))
        return self._end(hit.part, UNDONE_BY.get(verb, "start"), {}, hit.fault.line)

    def _end(self, part: str, ending: str, options: Mapping[str, str], line: str) -> list[_Hit] | None:
        """Ends on a part all that an ending ends."""
        lifted = self._ended_by(part, ending)
        # What ends nothing is done all the same; if it fails, it is told like a fault.
        told = lifted or [_Hit(Fault(line, ending, (part,), False, self._clock()), part, state=_State.APPLIED)]
        return self._lift(told, partial(self._undo, part, ending, options, lifted))

    def _free(self, part: str) -> list[_Hit] | None:
        """Undoes all that is in effect on a part: first what lets it be reached, last what it is asked to undo itself."""
        freed: list[_Hit] = []
        for ending in ("connect", "restore", "start", "resume"):
            if lifted := self._ended_by(part, ending):
                freed += self._end(part, ending, {}, lifted[0].fault.line) or []
        for hit in self._ended_by(part, "clear"):
            freed += self._lift([hit], partial(self._deployment.end, hit.fault.action, part, hit.handle)) or []
        return freed or None

    def _undo(self, part: str, ending: str, options: Mapping[str, str], lifted: Iterable[_Hit]) -> None:
        """What an ending does. A start may find the old process, if it had not crashed yet: its faults end nevertheless."""
        if ending != "clear":
            self._deployment.carry_out("start" if ending == "restart" else ending, part, options)
        for verb, handle in [(hit.fault.action, hit.handle) for hit in lifted]:
            if is_kind(verb) or (verb == "pause" and ending != "resume"):
                self._deployment.end(verb, part, handle)
        if ending == "clear":
            self._deployment.carry_out(ending, part, options)

    def _ended_by(self, part: str, ending: str) -> list[_Hit]:
        with self._lock:
            there = [hit for hit in self._hits if hit.part == part and hit.going_on]
        verbs = ended(ending, {hit.fault.action for hit in there})
        return [hit for hit in there if hit.fault.action in verbs]

    def _lift(self, hits: list[_Hit], command: Callable[[], None]) -> list[_Hit] | None:
        """Ends faults by a command. Returns them, whose part must now come up; or None where it failed."""
        with self._lock:
            now = self._clock()
            for hit in hits:
                hit.state = _State.LIFTING
                hit.fault.lifting = now if hit.fault.lifting is None else hit.fault.lifting
        try:
            command()
        except Exception as error:
            for hit in hits:
                hit.state = _State.FAILED  # and is tried again in the end
            self._fail(hits, error)
            return None
        return hits

    def _await_recovery(self, part: str, hits: list[_Hit]) -> None:
        deadline = time.monotonic() + self._recovery
        while not self._deployment.healthy(part):
            if time.monotonic() > deadline:
                why = self._deployment.explain(part)
                self._fail(hits, CannotDo(f"{part} did not come back within {self._recovery:g} s{f': {why}' if why else ''}"))
                return
            time.sleep(_LOOK)
        with self._lock:
            now = self._clock()
            for hit in hits:
                hit.state = _State.OVER
            for hit in hits:
                if all(each.state is _State.OVER for each in self._hits if each.fault is hit.fault):
                    hit.fault.cleared = now
            self._hits = [hit for hit in self._hits if hit.fault.cleared is None]

    def _fail(self, hits: Iterable[_Hit], error: Exception) -> None:
        said = str(error) if isinstance(error, CannotDo) else f"{type(error).__name__}: {error}"
        with self._lock:
            for hit in hits:
                hit.fault.error = hit.fault.error or (said if hit.part in said else f"{hit.part}: {said}")
                if not any(fault is hit.fault for fault in self.faults):
                    self.faults.append(hit.fault)


def _over(fault: Fault, at: float) -> bool:
    if fault.error and fault.applied is None:
        return True
    return fault.cleared is not None and fault.cleared <= at


def _told(fault: Fault, at: float) -> str:
    if fault.lifting is not None and fault.lifting <= at:
        return f"recovery from {fault.line}"
    return fault.line if fault.applied is not None and fault.applied <= at else f"{fault.line} …"
