"""Text that comes in pieces, read as if it were there already."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A reader's work: it yields where it needs more text than there is."""

_IN_JSON = re.compile(r'[{}\[\]"]')
_IN_STRING = re.compile(r'["\\]')


class Malformed(Exception):
    """The text is not what it looked like."""


class Feed:
    """What has come of a text and is not read yet. Methods that are a ``Reading`` wait for what they need."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self._kept: list[str] | None = None

    def keep(self) -> None:
        """From here on what is taken is kept, until ``rewind`` or ``release``."""
        self._kept = []

    def release(self) -> None:
        """What is taken is gone for good again."""
        self._kept = None

    def rewind(self) -> None:
        """Goes back to where ``keep`` was called, unless that was released since."""
        self.text = "".join(self._kept or ()) + self.text
        self._kept = None

    def take(self, size: int) -> str:
        """The next ``size`` characters, or as many as there are."""
        taken, self.text = self.text[:size], self.text[size:]
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def until(self, marks: Sequence[str], emit: Callable[[str], None]) -> Reading[str | None]:
        """Gives ``emit`` what comes before the first of ``marks``, as soon as it is certain to be no part of one. The mark is
        taken and returned; None where the text ends without any."""
        while True:
            found = [(at, mark) for mark in marks if (at := self.text.find(mark)) >= 0]
            if found:
                at, mark = min(found)
                emit(self.take(at))
                self.take(len(mark))
                return mark
            emit(self.take(len(self.text) - max(overlap(self.text, mark) for mark in marks)))
            if self.ended:
                emit(self.take(len(self.text)))
                return None
            yield

    def space(self) -> Reading[str]:
        """The white space that comes next, which is taken."""
        taken = ""
        while True:
            rest = self.text.lstrip()
            taken += self.take(len(self.text) - len(rest))
            if self.text or self.ended:
                return taken
            yield

    def starts(self, start: str) -> Reading[bool]:
        """Whether the text goes on with ``start``, which is taken then."""
        while len(self.text) < len(start) and not self.ended and start.startswith(self.text):
            yield
        if not self.text.startswith(start):
            return False
        self.take(len(start))
        return True

    def expect(self, start: str) -> Reading[None]:
        """Takes ``start``.

        Raises:
            Malformed: the text goes on with something else.
        """
        if not (yield from self.starts(start)):
            raise Malformed(start)

    def matching(self, pattern: re.Pattern[str], most: int) -> Reading[str]:
        """The longest beginning of the text that ``pattern`` matches, at most ``most`` characters; it is taken.

        Raises:
            Malformed: there is none, or it is longer.
        """
        while True:
            found = pattern.match(self.text)
            size = found.end() if found else 0
            if size > most:
                raise Malformed(pattern.pattern)
            if self.ended or size < len(self.text):
                break
            yield
        if not size:
            raise Malformed(pattern.pattern)
        return self.take(size)

    def value(self, emit: Callable[[str], None]) -> Reading[bool]:
        """Gives ``emit`` a JSON object or array, as it comes; False where the text ends before it does. What is within is not
        looked at, beyond brackets and strings."""
        depth, inside = 0, False
        while True:
            at = 0
            while found := (_IN_STRING if inside else _IN_JSON).search(self.text, at):
                at = found.end()
                if found[0] == "\\":
                    if at == len(self.text):
                        at -= 1
                        break
                    at += 1
                elif found[0] == '"':
                    inside = not inside
                else:
                    depth += 1 if found[0] in "{[" else -1
                    if not depth:
                        emit(self.take(at))
                        return True
            else:
                at = len(self.text)
            emit(self.take(at))
            if self.ended:
                emit(self.take(len(self.text)))
                return False
            yield


def overlap(text: str, mark: str) -> int:
    """The length of the longest end of ``text`` that is a beginning of ``mark``, and not all of it."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
