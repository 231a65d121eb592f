"""One hash an item, the same for equal content in any layout, and written together with the pad ids."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from math import comb, sqrt
from threading import Barrier

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shared.blocksums import BLOCK
from shared.errors import InternalError
from shared.identity import SUMS, ContentHasher, MediaItem, pad_ids_of
from shared.security import derive_key

SECRET = b"a secret of tests"
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
NAMES = (
    "float64", "float32", "float16", "bfloat16", *FLOAT8, "complex128", "complex64", "complex32", "bool",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
)  # fmt: skip
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]


@pytest.fixture(scope="module")
def hasher() -> ContentHasher:
    return ContentHasher(SECRET)


def content_of(dtype: torch.dtype, *shape: int) -> Tensor:
    """Random bytes as a tensor."""
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), generator=torch.Generator().manual_seed(1))
    return raw.to(torch.uint8).view(dtype).view(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_layout_does_not_matter(hasher: ContentHasher, dtype: torch.dtype) -> None:
    content = content_of(dtype, 4, 6, 10, 14)
    raw = torch.zeros(content.nbytes + dtype.itemsize, dtype=torch.uint8)
    layouts = {
        "strided": torch.zeros(4, 6, 10, 28, dtype=dtype)[..., ::2].copy_(content),
        "transposed": content.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        "channels last": content.contiguous(memory_format=torch.channels_last),
        "offset": raw[dtype.itemsize :].view(dtype).view(content.shape).copy_(content),
    }
    assert not layouts["channels last"].is_contiguous()
    expected = hasher.hash({"x": content})
    assert {name for name, layout in layouts.items() if hasher.hash({"x": layout}) != expected} == set()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_expanded_and_empty_tensors_and_single_values_hash_too(hasher: ContentHasher, dtype: torch.dtype) -> None:
    row = content_of(dtype, 1, 300)
    assert hasher.hash({"x": row.expand(40, 300)}) == hasher.hash({"x": torch.cat([row] * 40)})
    single, empty = content_of(dtype, 1), torch.empty(0, 3, dtype=dtype)
    shapes = (single, single.view(()), single.view(1, 1), empty, empty.view(3, 0), torch.empty(0, dtype=dtype))
    assert len({hasher.hash({"x": shape}) for shape in shapes}) == len(shapes)


def test_lazy_views_hash_as_what_they_show(hasher: ContentHasher) -> None:
    content = torch.randn(3, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    for view in (content.conj(), content.conj().imag, content.real):
        shown = torch.empty_like(view).copy_(view).contiguous()
        assert hasher.hash({"x": view}) == hasher.hash({"x": shown})
    assert hasher.hash({"x": content.conj()}) != hasher.hash({"x": content})


def test_autograd_and_inference_mode_do_not_matter(hasher: ContentHasher) -> None:
    content = torch.ones(50, 60)
    expected = hasher.hash({"x": content})
    assert hasher.hash({"x": torch.nn.Parameter(content.clone())}) == expected
    assert hasher.hash({"x": (torch.nn.Parameter(content.clone()) * 1).T.contiguous().T}) == expected
    with torch.inference_mode():
        made = torch.ones(60, 50).T
        assert ContentHasher(SECRET).hash({"x": made}) == expected
    assert hasher.hash({"x": made}) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3, device="meta"),
        lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
    ids=["sparse", "csr", "meta", "quantized", "nested", "jagged"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_has_no_plain_bytes_is_a_clear_error(hasher: ContentHasher, make: Callable[[], Tensor]) -> None:
    with pytest.raises(InternalError, match="cannot be hashed"):
        hasher.hash({"x": make()})


def test_many_threads_agree() -> None:
    """All of them at once on a hasher that nobody has used yet."""
    contents = [{"x": content_of(torch.float32, 100 + number, 70)} for number in range(16)]
    expected = [ContentHasher(SECRET).hash(content) for content in contents]
    fresh, ready = ContentHasher(SECRET), Barrier(16)

    def work(content: dict[str, Tensor]) -> list[str]:
        ready.wait(30)
        return [fresh.hash(content) for _ in range(10)]

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(work, contents)) == [[value] * 10 for value in expected]


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


def test_how_an_item_is_spelled_is_unambiguous(hasher: ContentHasher) -> None:
    """No two of these are the same item, whatever their names look like: also not like what goes before a name."""
    one, two = torch.zeros(1, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)
    hostile = "a|torch.uint8|(1,)|1|" + "\0" * 64  # a head and its sums, if heads were spelled like that
    items = (
        {"a": one}, {"a": two}, {"a": one, "b": one}, {hostile: one}, {hostile + "b": one}, {"a": one, "a|": one},
        {"": one}, {'a", "b': one}, {"a": one.view(torch.int8)}, {"a": one.view(1, 1)}, {"a": one[:0]},
        {"a": one[:0], "b": one[:0]},
    )  # fmt: skip
    assert len({hasher.hash(item) for item in items}) == len(items)


def test_raw_bytes_and_their_purposes_are_apart_from_tensors(hasher: ContentHasher) -> None:
    data = bytes(range(100))
    values = {
        hasher.hash_bytes(data, "x"),
        hasher.hash_bytes(data, "y"),
        hasher.hash_bytes(data[:-1], "x"),
        hasher.hash_bytes(b"", "x"),
        hasher.hash({"x": torch.frombuffer(bytearray(data), dtype=torch.uint8)}),
    }
    assert len(values) == 5
    assert all(len(value) == 32 for value in values)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_equal_bytes_and_only_they_hash_alike(hasher: ContentHasher, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    count = data.draw(st.integers(1, 40))
    lengths = {"min_size": count * dtype.itemsize, "max_size": count * dtype.itemsize}
    first = data.draw(st.binary(**lengths))
    second = data.draw(st.one_of(st.just(first), st.binary(**lengths)))
    one, other = (hasher.hash({"x": torch.frombuffer(bytearray(raw), dtype=dtype)}) for raw in (first, second))
    assert (one == other) == (first == second)


@pytest.mark.parametrize("size", [100, BLOCK, 3 * BLOCK + 5])
def test_each_bit_of_the_content_changes_half_of_the_hash(hasher: ContentHasher, size: int) -> None:
    content = content_of(torch.uint8, size)
    before = int(hasher.hash({"x": content}), 16)
    bits = random.Random(0).sample(range(8 * size), 100)
    changes = []
    for bit in bits:
        changed = content.clone()
        changed[bit // 8] ^= 1 << bit % 8
        changes.append(before ^ int(hasher.hash({"x": changed}), 16))
    counts = [change.bit_count() for change in changes]
    assert all(abs(count - 64) <= 5 * sqrt(32) for count in counts)
    assert abs(sum(counts) - 6400) <= 5 * sqrt(3200)
    each = [sum(change >> place & 1 for change in changes) for place in range(128)]
    assert all(abs(count - 50) <= 5 * 5 for count in each)


@pytest.mark.parametrize(("digest_bytes", "items"), [(2, 2000), (3, 12000)])
def test_different_items_meet_as_often_as_random_hashes_of_that_width(digest_bytes: int, items: int) -> None:
    hasher = ContentHasher(SECRET, digest_bytes=digest_bytes)
    contents = content_of(torch.uint8, items, 40)
    met = pairs_of(hasher.hash({"x": content}) for content in contents)
    expected = comb(items, 2) / 2 ** (8 * digest_bytes)
    assert abs(met - expected) <= 5 * sqrt(expected)


def pairs_of(values: Iterable[str]) -> int:
    """How many pairs of the values are equal."""
    return sum(comb(count, 2) for count in Counter(values).values())


@pytest.mark.parametrize("sums", [1, 2, 3, 16])
def test_blocks_meet_as_often_as_the_bound_says(sums: int) -> None:
    """Each two of these blocks differ by 1 in two bytes, and meet exactly where two rows of the matrix do: 2**-8 a sum."""
    hasher = ContentHasher(SECRET, sums=sums)
    met = pairs_of(hasher.hash({"x": block}) for block in torch.eye(BLOCK, dtype=torch.uint8))
    assert met == pairs_of(str(row) for row in matrix()[:, :sums].tolist())
    expected = comb(BLOCK, 2) / 2 ** (8 * sums)
    assert abs(met - expected) <= 5 * sqrt(expected)


def test_one_changed_byte_goes_unseen_where_the_matrix_is_zero() -> None:
    hasher, content = ContentHasher(SECRET, sums=1), torch.full((BLOCK,), 7, dtype=torch.uint8)
    before = hasher.hash({"x": content})
    changes = torch.eye(BLOCK, dtype=torch.uint8)
    unseen = {at for at in range(BLOCK) if hasher.hash({"x": content + changes[at]}) == before}
    assert unseen == set((matrix()[:, 0] == 0).nonzero().flatten().tolist())


WORST = {
    "one byte, all of its range": ([-128], [127]),
    "one byte, half of its range": ([0], [-128]),
    "two bytes, alike": ([0, 0], [1, 1]),
    "two bytes, against each other": ([3, 4], [4, 3]),
    "two bytes, at the ends": ([-128, 127], [127, -128]),
    "many bytes": ([0] * 500, [1, -1] * 250),
}


@pytest.mark.parametrize("case", WORST)
def test_no_kind_of_difference_meets_more_often_than_the_bound(case: str) -> None:
    before, after = (torch.tensor(values, dtype=torch.int8) for values in WORST[case])
    hasher, blank, tries, met = ContentHasher(SECRET, sums=1), torch.zeros(BLOCK, dtype=torch.int8), 1500, 0
    for at in range(tries):
        one, other = blank.clone(), blank.clone()
        one[at : at + len(before)], other[at : at + len(after)] = before, after
        met += hasher.hash({"x": one}) == hasher.hash({"x": other})
    expected = tries / 256
    assert met <= expected + 5 * sqrt(expected)


def matrix() -> Tensor:
    """The secret matrix, as the tests' secret gives it."""
    raw = derive_key(SECRET, "content-hash/matrix", BLOCK * SUMS)
    return torch.frombuffer(bytearray(raw), dtype=torch.int8).view(BLOCK, SUMS)


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
