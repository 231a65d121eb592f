"""Placeholders to exactly as many tokens as their items have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.language.engine.interface import Span
from shared.errors import InternalError, InvalidRequest
from shared.identity import MediaItem, Modality


def count_placeholders(token_ids: Sequence[int], placeholders: Mapping[Modality, int]) -> int:
    """How many media items a prompt has places for."""
    wanted = set(placeholders.values())
    return sum(token in wanted for token in token_ids)


def check_placeholders(token_ids: Sequence[int], placeholders: Mapping[Modality, int], media: int) -> None:
    """The template must have made one place for each media part.

    Raises:
        InvalidRequest: it did not; such a model takes no pictures, or not there.
    """
    places = count_placeholders(token_ids, placeholders)
    if places != media:
        raise InvalidRequest(
            f"The request has {media} pictures, but the model's chat template made {places} places for them.",
            param="messages",
        )


def expand(
    token_ids: Sequence[int], items: Sequence[MediaItem], placeholders: Mapping[Modality, int]
) -> tuple[list[int], tuple[Span, ...]]:
    """Repeats each placeholder as often as its item has tokens; returns the ids and where each item's tokens are.

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
        spans.append(Span(len(expanded), item))
        expanded.extend([token] * item.num_tokens)
    if next(waiting, None) is not None:
        raise InternalError("A prompt has fewer placeholders than media items.")
    return expanded, tuple(spans)
