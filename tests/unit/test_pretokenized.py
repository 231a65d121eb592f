"""Prompts of token ids: every item is expanded once, whether it came as one placeholder or expanded already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.language.models.generic import LanguageHalf
from services.language.prompt.expansion import expand
from services.language.prompt.pretokenized import check_given, place_items
from shared.errors import InvalidRequest
from shared.identity import MediaItem, Modality
from shared.layout import Layout

PICTURE, VIDEO, ROW_END, MARK, END = 90, 91, 80, 81, 82


@dataclass
class Family:
    """A family that takes pictures and videos."""

    placeholders: dict[Modality, int]
    media_ids: frozenset[int]


HALF = cast(LanguageHalf, Family({"image": PICTURE, "video": VIDEO}, frozenset([PICTURE, VIDEO])))
MARKED = cast(LanguageHalf, Family({"image": MARK}, frozenset([PICTURE])))


def plain(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def item(layout: Layout | None, tokens: int = 0, modality: Modality = "image") -> MediaItem:
    return MediaItem(modality, tokens or (layout.count(HALF.media_ids) if layout else 0), layout=layout)


def rows(height: int, width: int) -> Layout:
    """As Pixtral has it: rows that end with a token, the last one with another."""
    ids = [*([PICTURE] * width + [ROW_END]) * height]
    return Layout.of([*ids[:-1], END])


ITEMS = st.one_of(
    st.integers(1, 5).map(lambda tokens: item(None, tokens)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda sides: item(rows(*sides))),
    st.integers(1, 3).map(lambda tokens: item(Layout.of([MARK, *[PICTURE] * tokens, END]))),
    st.integers(1, 3).map(lambda frames: item(Layout.of([7, VIDEO, VIDEO, END] * frames), modality="video")),
)


def unexpanded(texts: list[list[int]], items: list[MediaItem]) -> list[int]:
    ids = list(texts[0])
    for each, text in zip(items, texts[1:], strict=True):
        ids += [HALF.placeholders[each.modality], *text]
    return ids


@given(st.data())
def test_single_and_expanded_items_come_to_the_same(data: st.DataObject) -> None:
    items = data.draw(st.lists(ITEMS, max_size=4))
    # Ordinary text between items, so that there is one way to read the prompt.
    texts = [data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)) for _ in range(len(items) + 1)]
    wanted = expand(unexpanded(texts, items), items, HALF.placeholders, HALF.media_ids)
    given_ids = list(texts[0])
    for each, text in zip(items, texts[1:], strict=True):
        placeholder = HALF.placeholders[each.modality]
        layout = each.layout or Layout(((placeholder, each.num_tokens),))
        given_ids += [*(layout.tokens() if data.draw(st.booleans()) else [placeholder]), *text]
    assert place_items(given_ids, items, HALF, plain) == wanted
    assert check_given(given_ids, HALF, [each.modality for each in items], 100) >= 0


@pytest.mark.parametrize("expanded", [False, True])
def test_kinds_may_be_in_another_order_than_in_the_messages(expanded: bool) -> None:
    media = [item(None, 2, "video"), item(None, 3), item(None, 4)]
    ids = [1, *[PICTURE] * 3, 2, *[PICTURE] * 4, *[VIDEO] * 2] if expanded else [1, PICTURE, 2, PICTURE, VIDEO]
    found, spans = place_items(ids, media, HALF, plain)
    assert found == [1, *[PICTURE] * 3, 2, *[PICTURE] * 4, *[VIDEO] * 2]
    assert [media.index(span.item) for span in spans] == [1, 2, 0]
    with pytest.raises(InvalidRequest):  # but not those of one kind
        place_items([*[PICTURE] * 4, 2, *[PICTURE] * 3, VIDEO], media, HALF, plain)


def test_placeholders_may_lie_outside_the_vocabulary() -> None:
    ids = [1, PICTURE, PICTURE, 2]
    assert check_given(ids, HALF, ["image"], 10) == 0
    with pytest.raises(InvalidRequest, match="token 10; the vocabulary has 10"):
        check_given([*ids, 10], HALF, ["image"], 10)


@pytest.mark.parametrize(
    ("ids", "tokens"),
    [
        ([1, PICTURE, PICTURE, 2], [3, 4]),
        ([PICTURE] * 7, [3, 4]),
        ([PICTURE] * 5, [1, 4]),
        ([PICTURE] * 4, [3, 4]),  # one of both is expanded
        ([PICTURE] * 2, [1, 1]),
    ],
)
def test_items_that_touch_are_told_apart_by_their_counts(ids: list[int], tokens: list[int]) -> None:
    expanded, spans = place_items(ids, [item(None, count) for count in tokens], HALF, plain)
    assert expanded.count(PICTURE) == sum(tokens)
    assert [span.tokens for span in spans] == tokens
    assert [token for token in expanded if token != PICTURE] == [token for token in ids if token != PICTURE]


@pytest.mark.parametrize(
    ("ids", "tokens", "told"),
    [
        ([1, PICTURE, PICTURE, 2], [3], r"2 placeholders, .* 1 pictures nor their tokens \(3\)"),
        ([PICTURE] * 4, [3], r"4 placeholders"),
        ([PICTURE] * 6, [3, 4], r"6 placeholders, .* 2 pictures nor their tokens \(3, 4\)"),
        ([VIDEO], [3], "1 placeholders"),
    ],
)
def test_what_fits_neither_way_is_refused_with_the_counts(ids: list[int], tokens: list[int], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as error:
        place_items(ids, [item(None, count) for count in tokens], HALF, plain)
    assert error.value.param == "prompt_token_ids"


@pytest.mark.parametrize(
    ("ids", "media", "told"),
    [
        ([1, 2], ["image"], "1 pictures, but prompt_token_ids has 0 placeholders"),
        ([PICTURE], ["image", "video"], "1 pictures and 1 videos, but prompt_token_ids has 1"),
        ([1, PICTURE], [], "0 pictures, but prompt_token_ids has 1"),
        ([1, 100], [], "names token 100; the vocabulary has 100"),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_is_encoded(ids: list[int], media: list[Modality], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_given(ids, HALF, media, 100)


def test_a_mark_that_stands_for_the_item_also_begins_its_expansion() -> None:
    picture = item(Layout.of([MARK, PICTURE, PICTURE, END], "ab", "c"))
    single, _ = place_items([1, MARK, 2], [picture], MARKED, plain)
    assert single == [1, 97, 98, MARK, PICTURE, PICTURE, END, 99, 2]
    again, spans = place_items(single, [picture], MARKED, plain)
    assert again == single
    assert [(span.start, span.tokens) for span in spans] == [(4, 2)]


def test_a_prompt_with_thousands_of_ways_to_read_it_is_refused_at_once() -> None:
    items = [item(None, 2 + number) for number in range(32)]
    with pytest.raises(InvalidRequest, match="placeholders"):
        place_items([PICTURE] * 8000, items, HALF, plain)
