"""Block sums are exact on every processor, and a tensor is neither copied nor taken off its device for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shared.blocksums import BLOCK, BlockSums, Product, _floats, _halves, exact_product
from shared.identity import ContentHasher
from tests.fake_device import DEVICE, FakeDevice

CPU = torch.device("cpu")


def signed(*size: int, seed: int = 0) -> Tensor:
    return torch.randint(-128, 128, size, generator=torch.Generator().manual_seed(seed)).to(torch.int8)


def extremes(rows: int) -> list[Tensor]:
    """Blocks, or matrices, that strain a product most."""
    least, most = torch.full((rows, BLOCK), -128), torch.full((rows, BLOCK), 127)
    either = torch.randint(0, 2, (rows, BLOCK), generator=torch.Generator().manual_seed(1))
    mixed = (torch.where(torch.arange(BLOCK) % 2 == 0, least, most), 255 * either - 128)
    return [case.to(torch.int8) for case in (least, most, *mixed)] + [signed(rows, BLOCK)]


@pytest.mark.parametrize(
    "make", [lambda matrix: exact_product(matrix, CPU), _halves, _floats], ids=["chosen", "halves", "floats"]
)
@pytest.mark.parametrize("rows", [1, 2, 17, 64, 300])
def test_sums_of_the_largest_bytes_are_exact(make: Callable[[Tensor], Product], rows: int) -> None:
    for matrix in (case.T.contiguous() for case in extremes(16)):
        product = make(matrix)
        for blocks in extremes(rows):
            assert torch.equal(product(blocks).long(), blocks.long() @ matrix.long())


def test_an_integer_product_that_saturates_or_is_not_there_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, matrix, blocks = torch._int_mm, signed(BLOCK, 16), extremes(3)[1]
    expected = blocks.long() @ matrix.long()

    def saturates(blocks: Tensor, matrix: Tensor) -> Tensor:
        """As where there is no VNNI: each two products are added in 16 bits."""
        unsigned = blocks.int() + 128
        pairs = (unsigned.unsqueeze(2) * matrix.int()).view(len(blocks), BLOCK // 2, 2, -1).sum(2, dtype=torch.int32)
        return pairs.clamp(-(2**15), 2**15 - 1).sum(1, dtype=torch.int32) - 128 * matrix.sum(0, dtype=torch.int32)

    def refuses(*_: Tensor) -> Tensor:
        raise RuntimeError("not implemented for this device")

    for broken, name in ((exact, "_whole"), (saturates, "_halves"), (refuses, "_floats")):
        monkeypatch.setattr(torch, "_int_mm", broken)
        product = exact_product(matrix, CPU)
        assert name in product.__qualname__
        assert torch.equal(product(blocks).long(), expected)


def test_processors_of_every_generation_agree() -> None:
    """oneDNN is told to know no more instructions than older processors have, most of which saturate."""
    script = """
import torch
from shared.identity import ContentHasher
from tests.unit.test_blocksums import extremes
hasher = ContentHasher(b"a secret of tests")
for content in extremes(9):
    print("hash", hasher.hash({"x": content}))
"""
    generations = ("SSE41", "AVX2", "AVX512_CORE")
    running = [
        subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"ONEDNN_MAX_CPU_ISA": isa}, stdout=subprocess.PIPE)
        for isa in generations
    ]
    outputs = [process.communicate(timeout=120)[0].decode().splitlines() for process in running]
    hasher = ContentHasher(b"a secret of tests")
    expected = [f"hash {hasher.hash({'x': content})}" for content in extremes(9)]
    for output in outputs:
        assert [line for line in output if line.startswith("hash ")] == expected


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK])
def test_the_last_block_is_filled_up_with_zeros(size: int) -> None:
    matrix, content = signed(BLOCK, 16), signed(size)
    blocks = -(-size // BLOCK)
    padded = torch.zeros(blocks * BLOCK, dtype=torch.int8)
    padded[:size] = content
    sums = BlockSums(matrix).of(content)
    assert (sums.shape, sums.dtype) == ((blocks, 16), torch.int32)
    assert torch.equal(sums.long(), padded.view(-1, BLOCK).long() @ matrix.long())


def test_only_sums_leave_the_device_and_nothing_is_copied_on_it() -> None:
    hasher, content = ContentHasher(b"a secret of tests"), torch.randn(64, 1000)
    expected = hasher.hash({"x": content})
    with FakeDevice() as device:
        there = device.put(content)
        assert there.device == DEVICE
        assert hasher.hash({"x": there}) == expected
    assert device.left
    assert all(step.dtype == torch.int32 and step.nbytes <= content.nbytes // 60 for step in device.left)
    with FakeDevice() as again:  # the matrix is there, and tested
        assert hasher.hash({"x": again.put(content)}) == expected
    assert all(step.nbytes <= max(BLOCK, content.nbytes // 60) for step in again.made)


def test_a_tensor_with_gaps_is_copied_on_its_own_device() -> None:
    hasher, content = ContentHasher(b"a secret of tests"), torch.randn(64, 1000)
    expected = hasher.hash({"x": content})
    for layout in (content.T.contiguous().T, torch.zeros(64, 2000)[:, ::2].copy_(content)):
        with FakeDevice() as device:
            assert hasher.hash({"x": device.put(layout)}) == expected
        assert [step.name for step in device.made if step.nbytes == content.nbytes and step.device == DEVICE] == [
            "aten.clone.default"
        ]
        assert all(step.dtype == torch.int32 for step in device.left)
