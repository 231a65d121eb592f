"""Reads the server-sent events of a chat stream at little cost: JSON is parsed only where something is to be learned."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_CONTENT = re.compile(rb'"(?:content|reasoning_content)":\s*"(?!")')
_USAGE = re.compile(rb'"usage":\s*\{')
_ERROR = re.compile(rb'^\{\s*"error":\s*\{')


@dataclass(slots=True)
class ChatStream:
    """What one stream told so far. ``first`` and ``last`` are the times (seconds) of the first and last event with text."""

    first: float | None = None
    last: float | None = None
    events: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    done: bool = False
    error: bool = False
    _rest: bytes = b""

    def feed(self, chunk: bytes, now: float) -> None:
        """Takes bytes as they come off the connection at time ``now``; an event may span chunks."""
        data = self._rest + chunk
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            payload = event.removeprefix(b"data:").lstrip()
            if _CONTENT.search(payload):
                self.first = now if self.first is None else self.first
                self.last = now
                self.events += 1
            if payload == b"[DONE]":
                self.done = True
            elif _USAGE.search(payload):
                usage = json.loads(payload)["usage"]
                self.prompt_tokens, self.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            elif _ERROR.match(payload):
                self.error = True

    @property
    def tokens(self) -> int:
        """Tokens of the answer: as the server counts them, or else the number of events with text."""
        return self.events if self.completion_tokens is None else self.completion_tokens
