"""Prompts that come as token ids: what stands in them for each item is found, whether it is expanded already or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.language.engine.interface import Span
from services.language.models.generic import LanguageHalf
from services.language.prompt.expansion import named, spans_of
from shared.errors import InvalidRequest
from shared.identity import MediaItem, Modality
from shared.layout import Layout

_PARAM = "prompt_token_ids"
_MOST_READINGS = 32
"""Ways to read a prompt that are followed at a time; a prompt that means something has one or two."""


def check_given(token_ids: Sequence[int], half: LanguageHalf, media: Sequence[Modality], vocab_size: int) -> int:
    """Looks at a prompt before its items are there; returns how many of its tokens are sure to stay beside the items'.

    Raises:
        InvalidRequest: it has fewer places than the request has items, places without items, or ids outside the vocabulary.
    """
    ours = _of_items(half)
    unknown = max((token for token in token_ids if token not in ours), default=0)  # some families' lie outside the vocabulary
    if unknown >= vocab_size:
        raise InvalidRequest(f"prompt_token_ids names token {unknown}; the vocabulary has {vocab_size}.", param=_PARAM)
    places = sum(token in ours for token in token_ids)
    if places < len(media) or (places and not media):
        raise InvalidRequest(f"The request has {named(media)}, but prompt_token_ids has {places} placeholders.", param=_PARAM)
    # Where some items are expanded already, nobody knows yet which of the ordinary tokens are theirs.
    return len(token_ids) - places if places == len(media) else 0


def _of_items(half: LanguageHalf) -> frozenset[int]:
    """The tokens that stand for items, in prompts that are expanded and in such that are not."""
    return half.media_ids | frozenset(half.placeholders.values())


def place_items(
    token_ids: Sequence[int], items: Sequence[MediaItem], half: LanguageHalf, encode: Callable[[str], list[int]]
) -> tuple[list[int], tuple[Span, ...]]:
    """The prompt with every item expanded once: those that stand there as one placeholder give way to their tokens, those whose
    tokens are there already stay. Both may occur in one prompt. Items of one kind are in their order; of different kinds, any
    may be first, since some templates put all pictures before all videos. ``encode`` makes tokens of the plain text at items'
    edges.

    Raises:
        InvalidRequest: what is there is neither, or not as many as items, with the counts.
    """
    ids = list(token_ids)
    ours = _of_items(half)
    layouts = [item.layout or Layout(((half.placeholders[item.modality], item.num_tokens),)) for item in items]
    spelled = [list(layout.tokens()) for layout in layouts]
    # The ways to read the prompt up to an item, by where that leaves off and which items are left: expanded or single, with
    # nothing of an item between. A place is an item's number, where it begins, and its length there.
    readings: dict[tuple[int, tuple[int, ...]], list[tuple[int, int, int]]] = {(0, tuple(range(len(items)))): []}
    for _ in items:
        following: dict[tuple[int, tuple[int, ...]], list[tuple[int, int, int]]] = {}
        for (end, left), places in readings.items():
            for number in _next_of_each_kind(left, items):
                rest = tuple(other for other in left if other != number)
                for start, length in _places(ids, end, spelled[number], half.placeholders[items[number].modality], ours):
                    following.setdefault((start + length, rest), [*places, (number, start, length)])
        readings = dict(list(following.items())[:_MOST_READINGS])
    for (end, _), places in readings.items():
        if not any(token in ours for token in ids[end:]):
            return _placed(ids, places, items, layouts, half, encode)
    found, wanted = sum(token in ours for token in ids), named([item.modality for item in items])
    counts = ", ".join(str(layout.count(ours)) for layout in layouts)
    raise InvalidRequest(
        f"prompt_token_ids has {found} placeholders, which fit neither one for each of {wanted} nor their tokens ({counts}).",
        param=_PARAM,
    )


def _next_of_each_kind(left: Sequence[int], items: Sequence[MediaItem]) -> list[int]:
    """The first item of each kind among those that are ``left``, in order."""
    first: dict[Modality, int] = {}
    for number in left:
        first.setdefault(items[number].modality, number)
    return list(first.values())


def _places(
    ids: Sequence[int], begin: int, tokens: Sequence[int], placeholder: int, ours: frozenset[int]
) -> list[tuple[int, int]]:
    """Where an item may stand that is the next one from ``begin`` on: start and length, the expanded reading first."""
    single = next((at for at in range(begin, len(ids)) if ids[at] in ours), None)
    if single is None:
        return []
    # Of its tokens, those before the first placeholder are ordinary ones (a mark, a time stamp).
    lead = next(at for at, token in enumerate(tokens) if token in ours)
    found = []
    start = single - lead
    if start >= begin and list(ids[start : start + len(tokens)]) == list(tokens):
        found.append((start, len(tokens)))
    if ids[single] == placeholder and (single, 1) not in found:
        found.append((single, 1))
    return found


def _placed(
    ids: Sequence[int],
    places: Sequence[tuple[int, int, int]],
    items: Sequence[MediaItem],
    layouts: Sequence[Layout],
    half: LanguageHalf,
    encode: Callable[[str], list[int]],
) -> tuple[list[int], tuple[Span, ...]]:
    expanded: list[int] = []
    spans: list[Span] = []
    at = 0
    for number, start, length in places:
        item, layout = items[number], layouts[number]
        expanded += ids[at:start]
        tokens = list(layout.tokens())
        single = list(ids[start : start + length]) != tokens
        before, after = (encode(layout.before), encode(layout.after)) if single else ([], [])
        expanded += before
        spans += spans_of(item, layout, len(expanded), half.media_ids)
        expanded += [*tokens, *after]
        at = start + length
    return [*expanded, *ids[at:]], tuple(spans)
