"""What must hold on a CUDA device too: ``make test-gpu``. Where there is none these tests fail; they are never skipped."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from services.encoder.models.generic import open_half
from services.language.engine.torch.core import EngineCore
from services.language.engine.torch.runner import Runner
from shared.blocksums import BLOCK, exact_product
from shared.identity import ContentHasher
from tests.families import make
from tests.unit.engine.harness import Model, Part, picture, run
from tests.unit.test_identity import DTYPES, content_of

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (60, 70), (2, 3, 40, 50), (1000, 384), (16 * BLOCK,)], ids=str)
def test_hashes_are_the_same_on_both_devices(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    hasher, content = ContentHasher(b"a secret of tests"), content_of(dtype, *shape)
    expected = hasher.hash({"x": content})
    there = content.to(CUDA)
    assert hasher.hash({"x": there}) == expected
    if content.ndim > 1:
        order = tuple(reversed(range(content.ndim)))
        assert hasher.hash({"x": there.permute(order).contiguous().permute(order)}) == expected
        assert hasher.hash({"x": torch.stack([there, there], dim=-1)[..., 0]}) == expected
    if content.ndim == 4:
        assert hasher.hash({"x": there.contiguous(memory_format=torch.channels_last)}) == expected


@pytest.mark.parametrize("start", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [100, BLOCK, 40 * BLOCK + 1])
def test_where_a_tensor_begins_in_memory_does_not_matter(size: int, start: int) -> None:
    """Integer products want whole words."""
    hasher, content = ContentHasher(b"a secret of tests"), content_of(torch.uint8, size + start)
    assert hasher.hash({"x": content.to(CUDA)[start:]}) == hasher.hash({"x": content[start:].clone()})


def test_the_device_has_an_exact_integer_product() -> None:
    """Else hashing would be right, but slow."""
    matrix = content_of(torch.int8, BLOCK, 16)
    assert "_whole" in exact_product(matrix, CUDA).__qualname__


def test_only_sums_leave_the_device() -> None:
    class Leaving(TorchDispatchMode):
        """Records what is copied from the device."""

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[torch.dtype, int]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sources = [arg for arg in args if isinstance(arg, Tensor) and arg.is_cuda]
            if sources and isinstance(result, Tensor) and not result.is_cuda:
                self.seen.append((result.dtype, result.nbytes))
            return result

    hasher, content = ContentHasher(b"a secret of tests"), torch.randn(1000, 1536, device=CUDA)
    for layout in (content, content.T):
        with Leaving() as leaving:
            hasher.hash({"x": layout})
        assert leaving.seen
        assert all(dtype == torch.int32 and size <= content.nbytes // 60 for dtype, size in leaving.seen)


def test_streams_and_threads_agree_on_the_device() -> None:
    contents = [content_of(torch.float32, 300 + number, 700) for number in range(8)]
    expected = [ContentHasher(b"a secret of tests").hash({"x": content}) for content in contents]
    fresh = ContentHasher(b"a secret of tests")

    def work(content: Tensor) -> str:
        with torch.cuda.stream(torch.cuda.Stream()):
            return fresh.hash({"x": content.to(CUDA)})

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, contents)) == expected


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(Path(make("qwen3_vl", tmp_path_factory.mktemp("qwen3_vl"))))


def test_the_tower_agrees_with_the_cpu(model: Model) -> None:
    there = open_half(model.folder, "cuda", "float32")
    for seed in range(3):
        [here_item] = model.items([picture(seed, 96, 64)])
        there_item = there.preprocess(picture(seed, 96, 64))
        there.encode([there_item])
        assert here_item.embeds is not None
        assert there_item.embeds is not None
        torch.testing.assert_close(there_item.embeds.cpu(), here_item.embeds, atol=1e-3, rtol=1e-3)


def test_the_engine_gives_the_undivided_models_tokens(model: Model) -> None:
    runner = Runner.load(model.folder, "cuda", "float32", block_size=4)
    kinds: list[list[Part]] = [["Hello!"], [picture(1), "What?"], [picture(2), picture(3, 96, 32), "Describe. " * 20]]
    core = EngineCore(runner, 512, 4, 64, 24)
    tokens = run(core, {number: model.request(parts) for number, parts in enumerate(kinds)})
    assert tokens == {number: model.expected(parts) for number, parts in enumerate(kinds)}
