"""One hash an item, the same for equal content in any layout, and written together with the pad ids."""

from __future__ import annotations

import pytest
import torch

from shared.errors import InternalError
from shared.identity import ContentHasher, MediaItem, pad_ids_of

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64]


@pytest.fixture(scope="module")
def hasher() -> ContentHasher:
    return ContentHasher(b"a secret of tests")


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_layout_does_not_matter(hasher: ContentHasher, dtype: torch.dtype) -> None:
    content = (torch.randn(60, 70, generator=torch.Generator().manual_seed(1)) * 100).to(dtype)
    strided = torch.zeros(60, 140, dtype=dtype)[:, ::2].copy_(content)
    transposed = content.T.contiguous().T
    offset = torch.zeros(61, 70, dtype=dtype)[1:].copy_(content)
    expected = hasher.hash({"x": content})
    for layout in (strided, transposed, offset):
        assert hasher.hash({"x": layout}) == expected


def test_order_of_names_does_not_matter_but_names_do(hasher: ContentHasher) -> None:
    a, b = torch.ones(3), torch.zeros(3)
    assert hasher.hash({"a": a, "b": b}) == hasher.hash({"b": b, "a": a})
    assert hasher.hash({"a": a, "b": b}) != hasher.hash({"a": b, "b": a})


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 * 4096])
def test_every_byte_counts(hasher: ContentHasher, size: int) -> None:
    zeros = torch.zeros(size, dtype=torch.uint8)
    seen = {hasher.hash({"x": zeros}), hasher.hash({"x": torch.zeros(size + 1, dtype=torch.uint8)})}
    places = sorted({0, size // 2, size - 1}) if size else []
    for at in places:
        changed = zeros.clone()
        changed[at] = 1
        seen.add(hasher.hash({"x": changed}))
    assert len(seen) == 2 + len(places)


def test_shape_and_dtype_count(hasher: ContentHasher) -> None:
    content = torch.zeros(2, 6)
    views = (content, content.view(3, 4), content.view(torch.int32))
    assert len({hasher.hash({"x": view}) for view in views}) == 3


def test_another_secret_gives_another_hash(hasher: ContentHasher) -> None:
    content = {"x": torch.ones(5000)}
    assert hasher.hash(content) != ContentHasher(b"another secret!!").hash(content)
    assert hasher.hash(content) == ContentHasher(b"a secret of tests").hash(content)


def test_nothing_to_hash_is_a_clear_error(hasher: ContentHasher) -> None:
    with pytest.raises(InternalError, match="no features"):
        hasher.hash({})


def test_set_hash_writes_hash_and_pad_ids_together() -> None:
    item = MediaItem("image", 4)
    with pytest.raises(InternalError, match="before its content hash"):
        _ = item.content_hash
    assert item.pad_ids == ()
    item.set_hash("ab" * 16)
    assert (item.content_hash, item.pad_ids) == ("ab" * 16, pad_ids_of("ab" * 16))
    item.set_hash("cd" * 16)
    assert item.pad_ids == pad_ids_of("cd" * 16)


def test_pad_ids_are_outside_every_vocabulary_and_fit_int64() -> None:
    ids = {pad for number in range(1000) for pad in pad_ids_of(f"{number:032x}")}
    assert len(ids) == 4000
    assert min(ids) >= 2**62
    assert max(ids) <= torch.iinfo(torch.int64).max
