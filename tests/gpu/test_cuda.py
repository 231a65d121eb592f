"""What must hold on a CUDA device too: ``make test-gpu``. Where there is none these tests fail; they are never skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.encoder.models.generic import VisionHalf
from services.language.engine.torch.core import EngineCore
from services.language.engine.torch.runner import Runner
from shared.identity import ContentHasher
from tests.checkpoints import make
from tests.unit.engine.harness import Model, Part, picture, run

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(3,), (60, 70), (1000, 1536), (16 * 4096,)])
def test_hashes_are_the_same_on_both_devices(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    hasher = ContentHasher(b"a secret of tests")
    content = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 100).to(dtype)
    expected = hasher.hash({"x": content})
    assert hasher.hash({"x": content.to(CUDA)}) == expected
    if content.ndim == 2:
        assert hasher.hash({"x": content.T.contiguous().to(CUDA).T}) == expected


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(Path(make("qwen3_vl", tmp_path_factory.mktemp("qwen3_vl"))))


def test_the_tower_agrees_with_the_cpu(model: Model) -> None:
    there = VisionHalf(model.folder, "cuda", "float32")
    for seed in range(3):
        [here_item] = model.items([picture(seed, 96, 64)])
        there_item = there.preprocess(picture(seed, 96, 64))
        there.encode([there_item])
        assert here_item.embeds is not None
        assert there_item.embeds is not None
        torch.testing.assert_close(there_item.embeds.cpu(), here_item.embeds, atol=1e-3, rtol=1e-3)


def test_the_engine_gives_the_undivided_models_tokens(model: Model) -> None:
    runner = Runner(model.folder, "cuda", "float32", block_size=4)
    kinds: list[list[Part]] = [["Hello!"], [picture(1), "What?"], [picture(2), picture(3, 96, 32), "Describe. " * 20]]
    core = EngineCore(runner, 512, 4, 64, 24)
    tokens = run(core, {number: model.request(parts) for number, parts in enumerate(kinds)})
    assert tokens == {number: model.expected(parts) for number, parts in enumerate(kinds)}
