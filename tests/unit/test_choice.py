"""Items keep to their encoder, none gets more than its share, joins and leaves move little, and many cost no more than few."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.language.embeddings.choice import BALANCE, Choice
from services.language.embeddings.least import LeastLoaded
from services.language.embeddings.ring import Ring


@dataclass(eq=False)
class Candidate:
    url: str
    capacity: int = 100
    load: int = 0


def encoders(number: int, **fields: int) -> list[Candidate]:
    return [Candidate(f"http://encoder-{index}:8001", **fields) for index in range(number)]


def choice_of(candidates: list[Candidate]) -> Choice[Candidate]:
    choice: Choice[Candidate] = Choice()
    for candidate in candidates:
        choice.put(candidate)
    return choice


def chosen(choice: Choice[Candidate], keys: int = 2000) -> dict[bytes, str]:
    return {key: choice.choose(key).url for key in KEYS[:keys]}


KEYS = [str(number).encode() for number in range(2000)]
LOADS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 80)), min_size=1, max_size=8)


def test_the_same_picture_goes_to_the_same_encoder_whatever_their_order() -> None:
    idle = encoders(5)
    assert chosen(choice_of(idle)) == chosen(choice_of(idle[::-1]))


def test_pictures_spread_evenly() -> None:
    counts = Counter(chosen(choice_of(encoders(4))).values())
    assert len(counts) == 4
    assert max(counts.values()) < 1.15 * len(KEYS) / 4


def test_an_encoder_gets_pictures_by_its_capacity() -> None:
    small, large = Candidate("http://a", capacity=10), Candidate("http://b", capacity=30)
    counts = Counter(chosen(choice_of([small, large])).values())
    assert 2.5 < counts["http://b"] / counts["http://a"] < 3.5


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=2, max_size=12), st.data())
def test_one_that_leaves_moves_only_what_it_had_and_one_that_joins_only_what_it_gets(
    capacities: list[int], data: st.DataObject
) -> None:
    known = [Candidate(f"http://{number}", capacity) for number, capacity in enumerate(capacities)]
    choice = choice_of(known)
    before = chosen(choice, keys=100)
    leaving = data.draw(st.sampled_from(known))
    choice.remove(leaving)
    without = chosen(choice, keys=100)
    assert all(without[key] == url for key, url in before.items() if url != leaving.url)
    assert leaving.url not in without.values()
    choice.put(leaving)
    assert chosen(choice, keys=100) == before


def test_one_that_says_that_it_takes_more_gets_more_and_moves_nothing_else() -> None:
    known = encoders(4)
    choice = choice_of(known)
    before = chosen(choice)
    known[0].capacity = 300
    choice.put(known[0])
    after = chosen(choice)
    assert {after[key] for key in KEYS if after[key] != before[key]} == {known[0].url}
    assert Counter(after.values())[known[0].url] > 1.5 * Counter(before.values())[known[0].url]


def test_the_least_loaded_is_so_by_capacity_and_may_be_avoided() -> None:
    a, b, c = Candidate("a", 10, 5), Candidate("b", 100, 20), Candidate("c", 10, 3)
    choice = choice_of([a, b, c])
    assert choice.least_loaded(()) is b
    assert choice.least_loaded({b}) is c
    assert choice.least_loaded({b, c}) is a
    assert choice.least_loaded(()) is b
    b.load = 90
    choice.put(b)
    assert choice.least_loaded(()) is c
    assert (choice.without({a}), choice.without({c, b})) == ((2, 17), (1, 5))


@settings(deadline=None)
@given(LOADS, st.binary(max_size=8))
def test_nobody_is_given_more_than_a_quarter_above_the_mean_nor_more_than_it_takes(
    loads: list[tuple[int, int]], key: bytes
) -> None:
    known = [Candidate(str(number), capacity, min(capacity, load)) for number, (capacity, load) in enumerate(loads)]
    choice = choice_of(known)
    if choice.without(())[1] == 0:
        return
    total = 1 + sum(candidate.load for candidate in known)
    capacity = sum(candidate.capacity for candidate in known)
    for found in (choice.choose(key), choice.least_loaded(())):
        assert found.load + 1 <= min(found.capacity, math.ceil(BALANCE * total * found.capacity / capacity))


@settings(deadline=None)
@given(LOADS, st.binary(max_size=8))
def test_where_one_has_more_than_it_now_takes_another_that_has_room_is_found(loads: list[tuple[int, int]], key: bytes) -> None:
    choice = choice_of([Candidate(str(number), capacity, load) for number, (capacity, load) in enumerate(loads)])
    if choice.without(())[1] > 0:
        for found in (choice.choose(key), choice.least_loaded(())):
            assert found.load < found.capacity


def test_thirty_copies_of_one_picture_do_not_all_wait_for_one_encoder() -> None:
    known = encoders(3)
    choice = choice_of(known)
    for _ in range(30):
        found = choice.choose(b"the same")
        found.load += 1
        choice.put(found)
    assert max(candidate.load for candidate in known) <= math.ceil(BALANCE * 30 / 3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 9)), max_size=400))
def test_the_least_loaded_is_the_least_after_any_changes(changes: list[tuple[int, int | None]]) -> None:
    least: LeastLoaded[int] = LeastLoaded()
    loads: dict[int, int] = {}
    for member, load in changes:
        if load is not None:
            loads[member] = load
            least.put(member, load)
        elif member in loads:
            del loads[member]
            least.remove(member)
        if loads:
            assert loads[least.first()] == min(loads.values())
        else:
            with pytest.raises(IndexError):
                least.first()


def test_loads_that_were_once_take_no_room_for_ever() -> None:
    least: LeastLoaded[str] = LeastLoaded()
    for load in range(10_000):
        least.put("a", -load)
        assert least.first() == "a"
    assert len(least._heap) <= 2 + 64


def test_a_walk_meets_each_member_once_whatever_their_weights() -> None:
    ring: Ring[str] = Ring()
    for weight, name in enumerate(("a", "b", "c", "d")):
        ring.put(name, name, 1000.0**weight)
    assert all(sorted(ring.walk(key)) == ["a", "b", "c", "d"] for key in KEYS[:50])
    for name in ("a", "b", "c"):
        ring.remove(name)
    assert list(ring.walk(b"x")) == ["d"]


class CountedRing(Ring[Candidate]):
    """Counts the members that are looked at."""

    def __init__(self, members: list[Candidate]) -> None:
        super().__init__()
        self.met = 0
        for member in members:
            self.put(member, member.url, member.capacity)

    def walk(self, key: bytes) -> Iterator[Candidate]:
        for member in super().walk(key):
            self.met += 1
            yield member


def looked_at(number: int, used: float) -> list[int]:
    """How many members are looked at for each of many items that come and go, where so much of all places is used."""
    draw = random.Random(number)
    known = encoders(number, capacity=16)
    choice = choice_of(known)
    choice._ring = ring = CountedRing(known)
    items: list[Candidate] = []
    met = []
    for _ in range(round(used * 16 * number) + 2000):
        if len(items) >= used * 16 * number:
            gone = items.pop(draw.randrange(len(items)))
            gone.load -= 1
            choice.put(gone)
        ring.met = 0
        items.append(choice.choose(draw.randbytes(8)))
        items[-1].load += 1
        choice.put(items[-1])
        met.append(ring.met)
    return met[-2000:]


@pytest.mark.parametrize("number", [10, 100, 1000])
@pytest.mark.parametrize("used", [0.02, 0.5, 0.9, 0.99])
def test_few_encoders_are_looked_at_for_an_item_however_many_there_are_and_however_full(number: int, used: float) -> None:
    met = looked_at(number, used)
    assert max(met) <= 32
    if used <= 0.9:
        assert sum(met) / len(met) < 5


class Compared(int):
    """A number that counts how often it is compared."""

    times = 0

    def __lt__(self, other: int) -> bool:
        Compared.times += 1
        return super().__lt__(other)


@pytest.mark.parametrize("number", [10, 100, 1000, 10_000])
def test_what_a_choice_compares_grows_by_the_logarithm_of_the_number_of_encoders(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compared, "times", 0)
    ring: Ring[str] = Ring()
    least: LeastLoaded[str] = LeastLoaded()
    names = [f"http://encoder-{index}:8001" for index in range(number)]
    for index, name in enumerate(names):
        ring.put(name, name, 1)
        least.put(name, Compared(index % 7))
    [circle] = ring._circles.values()
    circle.points = [Compared(point) for point in circle.points]
    allowed = 4 * math.ceil(math.log2(32 * number) + 1)
    for key in KEYS[:100]:
        Compared.times = 0
        assert list(islice(ring.walk(key), 1))
        assert 0 < Compared.times <= allowed
    Compared.times = 0
    for index in range(20 * number):
        least.put(names[index % number], Compared(index % 5))
        least.first()
    assert Compared.times / (20 * number) < allowed


def test_what_is_moved_when_many_leave_is_spread_over_the_rest() -> None:
    known = encoders(1000)
    choice = choice_of(known)
    for gone in known[:300]:
        choice.remove(gone)
        found = choice.least_loaded({gone})
        found.load += 1
        choice.put(found)
    assert Counter(candidate.load for candidate in known) == {0: 700, 1: 300}
