"""A conversation as the chat template takes it, and the media in it, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.language.output.format import Tool
from services.language.prompt.contents import text_of
from shared.identity import Modality


@dataclass(frozen=True, slots=True)
class MediaSource:
    """One picture, video or sound of a request: a ``url`` for the encoder to fetch, or ``data``, the bytes that came with the
    request.

    ``param`` is its place in the request, for error messages. ``digest`` is that of the data; ``supplied`` is the content hash
    that stands for what the caller supplied as one. ``form`` is how it is to be prepared, where there is a choice: what the
    family wants, and what ``detail`` (OpenAI's: auto, low or high) asks for. ``inline`` is the data URL that ``url`` stands
    for, where it was too long for a text.
    """

    index: int
    modality: Modality
    param: str
    url: str | None = None
    data: bytes | None = None
    digest: str | None = None
    supplied: str | None = None
    form: str = ""
    detail: str = "auto"
    inline: memoryview | None = None

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
    in place of the checkpoint's own, and gets ``tools`` and ``kwargs`` too.

    A message has ``role`` and ``content`` (text, parts or None), and may have ``name``, ``reasoning_content``, ``tool_call_id``
    and ``tool_calls``: OpenAI's objects, but with ``arguments`` as an object and not as its JSON text. With
    ``continue_final_message`` the prompt ends where the last message does, so that the answer goes on with it.
    """

    messages: list[dict[str, Any]]
    media: tuple[MediaSource, ...] = ()
    template: str | None = None
    tools: tuple[Tool, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def kinds(self) -> list[Modality]:
        """What kind each media item is of, in order."""
        return [source.modality for source in self.media]

    @property
    def continued(self) -> str:
        """The text that an answer goes on with; empty where it begins a message of its own."""
        return text_of(self.messages[-1]["content"]) if self.continue_final_message and self.messages else ""

    def texts(self) -> Iterator[str]:
        """Every piece of text that somebody wrote, wherever the template may put it."""
        for message in self.messages:
            content = message["content"]
            if isinstance(content, str):
                yield content
            elif content is not None:
                yield from (part["text"] for part in content if part["type"] == "text")
            yield from _strings({key: value for key, value in message.items() if key not in ("role", "content")})
        for tool in self.tools:
            yield from (tool.name, tool.description or "")
            yield from _strings(tool.parameters)
        yield from _strings(self.kwargs)


def _strings(value: Any) -> Iterator[str]:
    """The strings in what JSON can hold, names of fields included."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting.extend(value.keys())
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
