"""The encoders of a fleet become more under load, and fewer after it."""

from __future__ import annotations

import pytest

from benchmarks.autoscaling import ENCODERS, LANGUAGES, MOST, course
from tests.fleet.deployed import PATIENCE, Deployed
from tests.load import Case, check

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(900)]


def test_encoders_become_more_with_the_load_and_fewer_after_it(running: Deployed, singles: list[Case]) -> None:
    running.deploy(ENCODERS, LANGUAGES)
    running.until_updated(encoders=1, languages=1)
    recorder, more, _ = course(running, singles, calm=2.0, patience=PATIENCE)
    ready = [sample.ready for sample in recorder.samples]
    assert max(ready) == MOST
    # Nothing but the load has changed it: one before, and one after.
    assert {sample.ready for sample in recorder.samples if sample.at < more} == {1}
    assert ready[-1] == 1
    # Nobody notices that encoders come and go.
    check(recorder.load.outcomes, len(recorder.load.outcomes), set())
    assert {outcome.status for outcome in recorder.load.outcomes} == {200}
