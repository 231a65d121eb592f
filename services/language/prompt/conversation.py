"""A conversation as the chat template takes it, and the media in it, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shared.identity import Modality


@dataclass(frozen=True, slots=True)
class MediaSource:
    """One picture, video or sound of a request: a ``url`` for the encoder to fetch, or ``data``, the bytes that came with the
    request.

    ``param`` is its place in the request, for error messages. ``digest`` is that of the data; ``supplied`` is the content hash
    that stands for what the caller supplied as one. ``form`` is how the family wants it prepared, where there is a choice.
    """

    index: int
    modality: Modality
    param: str
    url: str | None = None
    data: bytes | None = None
    digest: str | None = None
    supplied: str | None = None
    form: str = ""

    @property
    def identity(self) -> str | None:
        """What tells it from others before it is encoded. A URL has none: what is behind it may change."""
        return self.supplied or self.digest

    @property
    def routing_key(self) -> bytes:
        """What decides which encoder it goes to at first."""
        return (self.identity or self.url or "").encode()


@dataclass(frozen=True, slots=True)
class Conversation:
    """``messages`` have the form that chat templates read; the n-th media part of theirs is ``media[n]``. ``template`` is taken
    in place of the checkpoint's own."""

    messages: list[dict[str, Any]]
    media: tuple[MediaSource, ...] = ()
    template: str | None = None

    @property
    def kinds(self) -> list[Modality]:
        """What kind each media item is of, in order."""
        return [source.modality for source in self.media]

    def texts(self) -> Iterator[str]:
        """Every piece of text that somebody wrote."""
        for message in self.messages:
            content = message["content"]
            if isinstance(content, str):
                yield content
            else:
                yield from (part["text"] for part in content if part["type"] == "text")
