"""The verdicts: each promise of the failure contract, judged from the client's side by what a run has seen."""

from __future__ import annotations

from collections.abc import Iterable

from services.loadtest.run import Run
from services.loadtest.verdicts.answers import answered, honest_failures, no_silent_answer, right
from services.loadtest.verdicts.detection import failed_fast
from services.loadtest.verdicts.recovery import recovered
from services.loadtest.verdicts.settled import settled
from services.loadtest.verdicts.success import success
from services.loadtest.verdicts.texts import texts_unnoticed
from services.loadtest.verdicts.validity import faults_applied, generator, had_teeth
from services.loadtest.verdicts.verdict import Evidence, Verdict

__all__ = ["Verdict", "judge", "passed"]


def judge(run: Run) -> list[Verdict]:
    """All that the run's scenario promises, each once; what it turns off, or what cannot apply to it, is left out."""
    evidence = Evidence.of(run)
    return [
        answered(evidence),
        right(evidence),
        no_silent_answer(evidence),
        honest_failures(evidence),
        *success(evidence),
        *texts_unnoticed(evidence),
        *failed_fast(evidence),
        *recovered(evidence),
        *had_teeth(evidence),
        *faults_applied(evidence),
        *settled(evidence),
        generator(evidence),
    ]


def passed(verdicts: Iterable[Verdict]) -> bool:
    """Whether every promise holds."""
    return all(verdict.holds for verdict in verdicts)
