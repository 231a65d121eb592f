"""Items keep to their encoder, no encoder gets more than its share, and joins and leaves move little."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.language.embeddings.choice import BALANCE, choose


@dataclass(eq=False)
class Candidate:
    url: str
    capacity: int = 100
    load: int = 0


def encoders(number: int, **fields: int) -> list[Candidate]:
    return [Candidate(f"http://encoder-{index}:8001", **fields) for index in range(number)]


KEYS = [str(number).encode() for number in range(2000)]


def test_the_same_picture_goes_to_the_same_encoder_whatever_their_order() -> None:
    idle = encoders(5)
    for key in KEYS[:50]:
        assert choose(key, idle).url == choose(key, idle[::-1]).url


def test_pictures_spread_evenly() -> None:
    counts = Counter(choose(key, encoders(4)).url for key in KEYS)
    assert len(counts) == 4
    assert max(counts.values()) < 1.15 * len(KEYS) / 4


def test_an_encoder_gets_pictures_by_its_capacity() -> None:
    small, large = Candidate("http://a", capacity=10), Candidate("http://b", capacity=30)
    counts = Counter(choose(key, [small, large]).url for key in KEYS)
    assert 2.5 < counts["http://b"] / counts["http://a"] < 3.5


def test_one_that_leaves_moves_only_what_it_had() -> None:
    before = {key: choose(key, encoders(5)).url for key in KEYS}
    after = {key: choose(key, encoders(5)[:-1]).url for key in KEYS}
    assert all(after[key] == url for key, url in before.items() if not url.endswith("-4:8001"))


def test_without_a_key_the_least_loaded_is_chosen_by_capacity() -> None:
    assert choose(None, [Candidate("a", 10, 5), Candidate("b", 100, 20), Candidate("c", 10, 3)]).url == "b"


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 80)), min_size=1, max_size=8), st.binary(max_size=8))
def test_nobody_is_given_more_than_a_quarter_above_the_mean(loads: list[tuple[int, int]], key: bytes) -> None:
    known = [Candidate(str(number), capacity, load) for number, (capacity, load) in enumerate(loads)]
    total = 1 + sum(load for _, load in loads)
    chosen = choose(key, known)
    assert chosen.load + 1 <= math.ceil(BALANCE * total * chosen.capacity / sum(capacity for capacity, _ in loads))


def test_thirty_copies_of_one_picture_do_not_all_wait_for_one_encoder() -> None:
    known = encoders(3)
    for _ in range(30):
        choose(b"the same", known).load += 1
    assert max(candidate.load for candidate in known) <= math.ceil(BALANCE * 30 / 3)
