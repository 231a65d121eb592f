"""What the load left behind."""

from __future__ import annotations

from collections.abc import Iterator

from services.loadtest.verdicts.verdict import Evidence, Verdict
from services.loadtest.wording import many


def settled(evidence: Evidence) -> Iterator[Verdict]:
    """A moment after the load's end, the deployment holds nothing."""
    if not evidence.bounds.no_leftovers:
        return
    leftovers = evidence.run.leftovers
    held = [leftover for leftover in leftovers if leftover.value != 0]
    if not leftovers:
        measured = "not looked at: the deployment does not say"
    else:
        measured = ", ".join(f"{each.value:g} {each.what}" for each in held) or f"nothing ({many(len(leftovers), 'figure')})"
    yield Verdict("settled", "After the load, the deployment holds nothing of it.", not held, measured, "nothing")
