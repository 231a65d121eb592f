"""A conversation as the chat template takes it, and the media in it, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shared.identity import Modality


@dataclass(frozen=True, slots=True)
class MediaSource:
    """One picture of a request: a ``url`` for the encoder to fetch, or ``data``, the bytes that came with the request.

    ``param`` is its place in the request, for error messages. ``key`` tells pictures apart before they are encoded: equal ones
    go to the same encoder.
    """

    index: int
    modality: Modality
    param: str
    url: str | None = None
    data: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """``messages`` have the form that chat templates read; the n-th media part of theirs is ``media[n]``."""

    messages: list[dict[str, Any]]
    media: tuple[MediaSource, ...] = ()

    def texts(self) -> Iterator[str]:
        """Every piece of text that somebody wrote."""
        for message in self.messages:
            content = message["content"]
            if isinstance(content, str):
                yield content
            else:
                yield from (part["text"] for part in content if part["type"] == "text")
