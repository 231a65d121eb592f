"""Not one answer about another's picture, whatever is repeated, reordered, late, damaged or moved."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.fleet import fleet, metrics
from tests.load import Case, Outcome, ask_all, check, codes

ASKED, CLIENTS = 5000, 64
CACHED = 2500  # of them, again with caches

MISCHIEF: list[dict[str, Any]] = [
    {"kind": "reorder", "probability": 0.3},
    {"kind": "delay", "at": "fetch", "seconds": 0.0, "jitter": 0.05, "probability": 0.3},
    {"kind": "delay", "at": "publish", "seconds": 0.0, "jitter": 0.05, "probability": 0.3},
    {"kind": "late", "seconds": 0.4, "probability": 0.02},
    {"kind": "error", "probability": 0.02},
    {"kind": "drop", "probability": 0.01},
    {"kind": "duplicate", "times": 3, "probability": 0.3},
    {"kind": "corrupt", "bits": 1, "frame": 0, "probability": 0.05},
    {"kind": "corrupt", "bits": 3, "probability": 0.02},
    {"kind": "wrong_tokens", "probability": 0.01},
]
FAILURES = {"encoder_failed", "embedding_incomplete", "embedding_corrupt", "embedding_incompatible"}


# Room for about twenty items: what is known is found, forgotten and asked for again all the time.
FEW = {"embedding_cache_bytes": 2**17}


def stirred(folder: Path, wanted: list[Case], **caches: int) -> tuple[list[Outcome], dict[str, float]]:
    """What came of ``wanted``, and the language service's metrics afterwards."""
    options = {"arrival_grace": 0.2, "breaker_failures": 10**6, "encoder_retries": 2, **caches}
    with fleet(folder, encoders=3, encoder={"faults_enabled": True, **caches}, language=options) as services:
        for number, encoder in enumerate(services.encoders):
            services.set_faults(*({**fault, "seed": number} for fault in MISCHIEF), encoders=[encoder])
        outcomes = asyncio.run(ask_all(services.language.url, wanted, CLIENTS))
        return outcomes, metrics(services.language)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("cached", [False, True])
def test_no_answer_is_about_anothers_picture(tmp_path: Path, singles: list[Case], doubles: list[Case], cached: bool) -> None:
    rng = random.Random(7)
    asked = CACHED if cached else ASKED
    wanted = [rng.choice(singles if rng.random() < 0.5 else doubles) for _ in range(asked)]
    outcomes, counted = stirred(tmp_path, wanted, **(FEW if cached else {}))
    check(outcomes, asked, FAILURES)
    # Most are moved in time; and the mischief did happen.
    assert codes(outcomes)["ok"] > 0.98 * asked
    assert counted["epd_waits"] == counted["epd_held_bytes"] == 0
    if cached:
        for outcome in ("hit", "joined", "miss"):
            assert counted[f'epd_cache_lookups_total{{outcome="{outcome}"}}'] > 50
        assert counted["epd_cache_evictions_total"] > 50
        assert counted["epd_cache_bytes"] <= FEW["embedding_cache_bytes"]
        return
    for reason in ("late", "repeated"):
        assert counted[f'epd_late_messages_total{{reason="{reason}"}}'] > 20
    for code in FAILURES:
        assert counted[f'epd_failover_total{{code="{code}"}}'] > 10
