"""Each kind of decoder gives, on the paged engine, the tokens that it gives in transformers: in chunks, in company, again."""

from __future__ import annotations

import pytest

from tests.unit.engine.decoders import DECODERS, Decoder, Part, Shown, words
from tests.unit.engine.harness import collect, run

CASES: dict[str, list[Part]] = {
    "text": [words(1, 13)],
    "a picture in the middle": [words(2, 6), Shown(1, 7), words(3, 5)],
    "adjacent pictures first": [Shown(2, 5), Shown(3, 12), words(4, 9)],
    "a picture last": [words(5, 30), Shown(4, 6)],
    "longer than every window": [words(6, 25), Shown(5, 9), words(7, 20)],
}


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return Decoder(request.param)


@pytest.fixture(scope="module")
def expected(decoder: Decoder) -> dict[str, list[int]]:
    return {name: decoder.expected(parts) for name, parts in CASES.items()}


def test_alone(decoder: Decoder, expected: dict[str, list[int]]) -> None:
    for name, parts in CASES.items():
        assert run(decoder.core(), {0: decoder.request(parts)})[0] == expected[name], name
        if not decoder.half.by_grid:
            assert decoder.generated(parts) == expected[name], name


def test_what_a_picture_shows_and_where_it_stands_tells(decoder: Decoder, expected: dict[str, list[int]]) -> None:
    """Else the other tests would prove less than they seem to."""
    assert decoder.expected([words(2, 6), Shown(9, 7), words(3, 5)]) != expected["a picture in the middle"]
    assert decoder.expected([words(2, 3), Shown(1, 7), words(2, 6)[3:], words(3, 5)]) != expected["a picture in the middle"]
    assert len({token for tokens in expected.values() for token in tokens}) > 10


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_all_together_in_chunks(decoder: Decoder, expected: dict[str, list[int]], batch: int) -> None:
    tokens = run(decoder.core(batch=batch), {number: decoder.request(parts) for number, parts in enumerate(CASES.values())})
    assert list(tokens.values()) == list(expected.values())


def test_after_preemption(decoder: Decoder) -> None:
    """A pool too small for all: some give their blocks up, in the middle of their answers, and come back."""
    kinds: list[list[Part]] = [[words(20 + number, 9), Shown(number, 6), words(30 + number, 5)] for number in range(4)]
    core = decoder.core(blocks=15, batch=16)
    tokens = run(core, {number: decoder.request(parts, 16) for number, parts in enumerate(kinds)})
    assert list(tokens.values()) == [decoder.expected(parts, 16) for parts in kinds]
    assert core.load().preemptions > 0


def test_with_a_known_beginning(decoder: Decoder) -> None:
    """The same text around pictures of equal size: what was computed before ends within the second picture."""
    core = decoder.core()
    one: list[Part] = [words(40, 6), Shown(20, 5), Shown(21, 9), words(41, 11)]
    other: list[Part] = [words(40, 6), Shown(20, 5), Shown(22, 9), words(41, 11)]
    again: list[Part] = [words(40, 6), Shown(20, 5), Shown(21, 9), words(42, 7)]
    for parts in (one, other, again):
        assert run(core, {0: decoder.request(parts)})[0] == decoder.expected(parts)
    assert core.load().prefix_tokens_found == 8 + 20


def test_joined_by_others_while_it_writes(decoder: Decoder, expected: dict[str, list[int]]) -> None:
    core = decoder.core(batch=9)
    tokens: dict[int, list[int]] = {number: [] for number in range(len(CASES))}
    for number, parts in enumerate(CASES.values()):
        core.add(number, decoder.request(parts))
        collect(core, tokens, steps=2)
    collect(core, tokens)
    assert list(tokens.values()) == list(expected.values())
