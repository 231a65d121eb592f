"""A cache holds as many bytes as it may, and gives up what was not used for longest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.lru import ByteLRU


def test_the_least_recently_used_goes_first() -> None:
    cache: ByteLRU[str, int] = ByteLRU(3)
    for number, key in enumerate("abc"):
        cache.put(key, number, 1)
    assert cache.get("a") == 0
    cache.put("d", 3, 1)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.get("d")) == (0, None, 2, 3)
    assert (cache.bytes, len(cache), cache.evicted) == (3, 3, 1)


def test_a_value_takes_the_place_of_its_keys_old_one() -> None:
    cache: ByteLRU[str, int] = ByteLRU(10)
    cache.put("a", 1, 8)
    cache.put("a", 2, 4)
    assert (cache.get("a"), cache.bytes, cache.evicted) == (2, 4, 0)
    cache.discard("a")
    cache.discard("a")
    assert (cache.get("a"), cache.bytes) == (None, 0)


def test_what_is_too_large_alone_is_not_kept_and_evicts_nobody() -> None:
    cache: ByteLRU[str, int] = ByteLRU(10)
    cache.put("a", 1, 8)
    cache.put("b", 2, 11)
    assert (cache.get("a"), cache.get("b")) == (1, None)


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache: ByteLRU[str, int] = ByteLRU(0)
    cache.put("a", 1, 1)
    assert (cache.get("a"), len(cache)) == (None, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=60))
def test_it_never_holds_more_than_it_may_and_counts_what_it_holds(puts: list[tuple[int, int]]) -> None:
    cache: ByteLRU[int, int] = ByteLRU(50)
    for key, size in puts:
        cache.put(key, size, size)
        held = sum(found for each in range(10) if (found := cache.get(each)) is not None)
        assert cache.bytes == held <= 50
