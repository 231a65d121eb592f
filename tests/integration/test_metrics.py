"""Real services expose the metrics that their sources declare, and which ``docs/observability.md`` lists."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.conftest import Pair
from tests.declared import metrics


@pytest.mark.parametrize("name", ["encoder", "language"])
def test_what_is_exposed_is_what_is_declared(pair: Pair, name: str) -> None:
    page = httpx.get(f"{getattr(pair, name).url}/metrics", trust_env=False).text
    exposed = {
        (kind, metric)
        for metric, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)
        if not metric.endswith("_created")  # the client library's own
    }
    assert exposed == {(metric.kind, metric.name) for metric in metrics("shared", f"services/{name}")}
