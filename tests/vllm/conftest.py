"""The same services as everywhere, but for one setting: every language service of this folder computes by vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.conftest import doubles, singles, undivided  # noqa: F401
from tests.conftest import Pair, demo_pair
from tests.processes import LANGUAGE_SETTINGS

VLLM: dict[str, Any] = {
    "engine": "vllm",
    # Compiling takes longer than all that these models are asked.
    "vllm_args": json.dumps({"enforce_eager": True}),
    "kv_cache_memory": 64 * 2**20,
}


@pytest.fixture(scope="package", autouse=True)
def engine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LANGUAGE_SETTINGS, json.dumps(VLLM))
        yield


@pytest.fixture(scope="package")
def pair(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair with the demo model, for all tests of this folder that leave it as they found it."""
    with demo_pair(tmp_path_factory.mktemp("pair")) as made:
        yield made
