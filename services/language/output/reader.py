"""An answer's text to its reasoning, its content and its calls, while it comes."""

from __future__ import annotations

from collections.abc import Callable

from services.language.output.calls import CallReader
from services.language.output.feed import Feed, Reading
from services.language.output.format import CallDelta, Parts
from services.language.output.reasoning import Thinking


class MessageReader:
    """Reads one answer. Reasoning comes first, if at all: after its mark, or from the start on where the prompt has left it
    ``open``. White space around the marks is no part of the message.

    ``thinking`` is whether the text is within reasoning now, ``called`` whether a call has begun.
    """

    def __init__(self, thinking: Thinking | None, open: bool, calls: CallReader | None) -> None:
        self.thinking = thinking is not None and open
        self.called = False
        self._calls = calls
        self._feed = Feed()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._deltas: list[CallDelta] = []
        self._space = ""
        self._work = None if thinking is None else self._answer(thinking)
        if self._work is not None:
            next(self._work)

    def push(self, text: str) -> Parts:
        """What ``text``, which comes next, makes certain."""
        self._read(text)
        return self._parts()

    def flush(self) -> Parts:
        """What is left at the answer's end."""
        self._feed.ended = True
        self._read("")
        if self._calls is not None:
            self._take(*self._calls.flush())
        return self._parts()

    def _read(self, text: str) -> None:
        if self._work is None:
            self._write(text)
        else:
            self._feed.text += text
            next(self._work, None)

    def _parts(self) -> Parts:
        parts = Parts("".join(self._content), "".join(self._reasoning), tuple(self._deltas))
        self._content, self._reasoning, self._deltas = [], [], []
        return parts

    def _take(self, content: str, deltas: list[CallDelta]) -> None:
        self._content.append(content)
        self._deltas += deltas
        self.called = self.called or bool(deltas)

    def _write(self, text: str) -> None:
        if self._calls is None:
            self._content.append(text)
        else:
            self._take(*self._calls.push(text))

    def _think(self, text: str) -> None:
        """Reasoning. White space at its end waits: before the mark it counts for nothing."""
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._reasoning.append(shown)

    def _answer(self, thinking: Thinking) -> Reading[None]:
        feed = self._feed
        yield
        before = yield from feed.space()
        # Some models write the mark again that their prompt ends with.
        begun = yield from feed.starts(thinking.begin)
        self.thinking = self.thinking or begun
        if self.thinking:
            yield from feed.space()
            if (yield from feed.until([thinking.end], self._think)) is None:
                self._reasoning.append(self._space)
                return
            self.thinking = False
            yield from feed.space()
        else:
            self._write(before)
        yield from self._rest(self._write)

    def _rest(self, write: Callable[[str], None]) -> Reading[None]:
        while True:
            write(self._feed.take(len(self._feed.text)))
            if self._feed.ended:
                return
            yield
