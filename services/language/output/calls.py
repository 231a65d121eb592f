"""Calls of tools in an answer's text, read while it comes."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from services.language.output.feed import Feed, Malformed, Reading
from services.language.output.format import CallDelta

MOST_NAME = 256
"""Characters that a name may have: what is longer is no call's."""

NAME = re.compile(r"[\w.:-]+")


class CallReader(Protocol):
    """Tells content from calls. However the text is cut into pieces, the sum of what is read is the same; what turns out to be
    no call is content, and nothing is lost but the marks, and white space between them and content."""

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """What ``text``, which comes next, makes certain."""
        ...

    def flush(self) -> tuple[str, list[CallDelta]]:
        """What is left at the answer's end: the text of a call that had only just begun, for example."""
        ...


class MarkedCalls(ABC):
    """Reads answers in which a ``trigger`` comes before calls. A dialect says how a call is spelled (``_calls``).

    A call is told once its name is certain and its arguments have begun. What comes before that is kept, and is content if it
    turns out to be no call.
    """

    def __init__(self, trigger: str) -> None:
        self._trigger = trigger
        self._feed = Feed()
        self._content: list[str] = []
        self._space = ""
        self._told: list[CallDelta] = []
        self._count = 0
        self._work = self._answer()
        next(self._work)

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        self._feed.text += text
        return self._go_on()

    def flush(self) -> tuple[str, list[CallDelta]]:
        self._feed.ended = True
        return self._go_on()

    @abstractmethod
    def _calls(self) -> Reading[None]:
        """Reads what comes after the trigger, up to the end of its calls, at least one.

        Raises:
            Malformed: it is no call, or a further one is none, before which the feed was told to ``keep``.
        """

    def _begin(self, name: str, call_id: str | None = None) -> Callable[[str], None]:
        """Tells of a call; returns what is to be given its arguments."""
        self._feed.release()
        index = self._count
        self._count += 1
        self._told.append(CallDelta(index, call_id or self._new_id(), name))

        def argue(text: str) -> None:
            if text:
                self._told.append(CallDelta(index, arguments=text))

        return argue

    def _new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"

    def _go_on(self) -> tuple[str, list[CallDelta]]:
        next(self._work, None)
        content, told = "".join(self._content), self._told
        self._content, self._told = [], []
        return content, told

    def _write(self, text: str) -> None:
        """Content. White space at its end waits: before a call it counts for nothing."""
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._content.append(shown)

    def _answer(self) -> Reading[None]:
        feed = self._feed
        yield
        while (yield from feed.until([self._trigger], self._write)) is not None:
            feed.keep()
            count = self._count
            try:
                yield from self._calls()
            except Malformed:
                # What was not told of is text, in which a call may yet begin.
                feed.rewind()
            if self._count == count:
                self._write(self._trigger)
                continue
            feed.release()
            self._space = ""
            yield from feed.space()
        self._content.append(self._space)
        self._space = ""
