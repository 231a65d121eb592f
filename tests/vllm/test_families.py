"""Tiny checkpoints of the families that vLLM takes embeddings of: its tokens are those of the undivided transformers model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.test_families import PICTURES, Served, serve

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(request.param, tmp_path_factory.mktemp(request.param), heads=2) as running:
        yield running


def test_the_tokens_are_those_of_the_undivided_model(served: Served) -> None:
    served.check(PICTURES)
