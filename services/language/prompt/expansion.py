"""Placeholders to exactly the tokens that their items have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from services.language.engine.interface import Span
from shared.errors import InternalError, InvalidRequest
from shared.identity import MediaItem, Modality
from shared.layout import Layout

_NAMES: dict[Modality, str] = {"image": "pictures", "video": "videos", "audio": "sounds"}


def named(media: Sequence[Modality]) -> str:
    """How many there are of each kind, in words."""
    kinds = [kind for kind in _NAMES if kind in media] or ["image"]
    return " and ".join(f"{media.count(kind)} {_NAMES[kind]}" for kind in kinds)


def check_modalities(media: Sequence[Modality], placeholders: Mapping[Modality, int], params: Sequence[str]) -> None:
    """The model must take what the request has.

    Raises:
        InvalidRequest: it does not.
    """
    for kind, param in zip(media, params, strict=True):
        if kind not in placeholders:
            taken = ", ".join(_NAMES[each] for each in placeholders)
            raise InvalidRequest(f"The model takes no {_NAMES[kind]}, only text, {taken}.", param=param)


def check_placeholders(token_ids: Sequence[int], placeholders: Mapping[Modality, int], media: Sequence[Modality]) -> None:
    """The template must have made one place for each media part.

    Raises:
        InvalidRequest: it did not; such a model takes no pictures, or not there.
    """
    kinds = {token: kind for kind, token in placeholders.items()}
    places = [kinds[token] for token in token_ids if token in kinds]
    if sorted(places) != sorted(media):
        raise InvalidRequest(
            f"The request has {named(media)}, but the model's chat template made {len(places)} places for them.",
            param="messages",
        )


def in_places(token_ids: Sequence[int], items: Sequence[MediaItem], placeholders: Mapping[Modality, int]) -> list[MediaItem]:
    """``items`` in the order of their places: some templates put all pictures before all videos."""
    kinds = {token: kind for kind, token in placeholders.items()}
    waiting = {kind: iter([item for item in items if item.modality == kind]) for kind in placeholders}
    return [next(waiting[kinds[token]]) for token in token_ids if token in kinds]


def expand(
    token_ids: Sequence[int], items: Sequence[MediaItem], placeholders: Mapping[Modality, int], media_ids: Collection[int]
) -> tuple[list[int], tuple[Span, ...]]:
    """Puts each item's tokens in the place of its placeholder; returns the ids and where the items' embeddings are.

    Raises:
        InternalError: placeholders and items do not correspond (checked before, so a bug).
    """
    modalities = {token: modality for modality, token in placeholders.items()}
    expanded: list[int] = []
    spans: list[Span] = []
    waiting = iter(items)
    for token in token_ids:
        if token not in modalities:
            expanded.append(token)
            continue
        item = next(waiting, None)
        if item is None or item.modality != modalities[token]:
            raise InternalError("The placeholders of a prompt do not correspond to its media items.")
        layout = item.layout or Layout(((token, item.num_tokens),))
        spans += spans_of(item, layout, len(expanded), media_ids)
        expanded.extend(layout.tokens())
    if next(waiting, None) is not None:
        raise InternalError("A prompt has fewer placeholders than media items.")
    return expanded, tuple(spans)


def spans_of(item: MediaItem, layout: Layout, start: int, media_ids: Collection[int]) -> list[Span]:
    """Where the embeddings of an item are whose tokens begin at ``start``."""
    spans: list[Span] = []
    offset = 0
    for token, count in layout.runs:
        if token in media_ids:
            spans.append(Span(start, item, offset, count))
            offset += count
        start += count
    return spans


def edges_of(items: Sequence[MediaItem]) -> list[tuple[str, str]]:
    """The plain text before and after each item; empty where no item has any."""
    edges = [("", "") if item.layout is None else (item.layout.before, item.layout.after) for item in items]
    return edges if any(chain.from_iterable(edges)) else []
