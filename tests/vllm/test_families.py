"""Tiny checkpoints of the families that vLLM takes embeddings of: its tokens are those of the undivided transformers model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.test_families import PICTURES, Served, start

pytestmark = pytest.mark.vllm

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """A pair of each family. They start two at a time: most of vLLM's start takes one core."""
    with ExitStack() as stack:
        pairs: dict[str, Served] = {}
        for at in range(0, len(FAMILIES), 2):
            names = FAMILIES[at : at + 2]
            pairs |= {name: stack.enter_context(start(name, tmp_path_factory.mktemp(name), heads=2)) for name in names}
            for name in names:
                pairs[name].wait_until_ready()
        yield pairs


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokens_are_those_of_the_undivided_model(served: dict[str, Served], name: str) -> None:
    served[name].check(PICTURES)
