"""Text-only requests do not notice that encoders fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.failures import pictures_beside, texts, until_served
from tests.chaos.fleet import fleet
from tests.load import Case, codes, percentile

ROUNDS, TEXTS, RATE = 3, 100, 20
MOST = 1.2
FAULTS: dict[str, dict[str, Any]] = {
    "hanging": {"kind": "hang"},
    "failing": {"kind": "error"},
    "silent": {"kind": "drop"},
}


@pytest.mark.parametrize("name", FAULTS)
def test_texts_beside_failing_pictures_are_as_fast_as_beside_answered_ones(
    tmp_path: Path, singles: list[Case], name: str
) -> None:
    """All succeed, and p99 is within 1.2 x of calm; the quietest round of each counts, since the machine is noisy, too."""
    calm: list[float] = []
    failing: list[float] = []

    async def round_of(url: str) -> tuple[float, set[str]]:
        async with pictures_beside(url, singles, RATE) as outcomes:
            seconds = await texts(url, TEXTS)
        return percentile(seconds, 0.99), set(codes(outcomes))

    with fleet(tmp_path, encoder={"faults_enabled": True}) as services:
        for _ in range(ROUNDS):
            services.set_faults()
            until_served(services, singles[0])
            p99, found = asyncio.run(round_of(services.language.url))
            assert found == {"ok"}
            calm.append(p99)
            services.set_faults(FAULTS[name])
            p99, found = asyncio.run(round_of(services.language.url))
            assert "ok" not in found
            failing.append(p99)
    assert min(failing) <= MOST * min(calm), (calm, failing)
