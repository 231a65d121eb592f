"""What a server answered: a completion or an error, whole or as events. Nothing here waits for anything."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

_SHOWN = 200
"""Bytes of an answer that are shown where it is none."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    delta: _Message | None = None


class _Problem(msgspec.Struct):
    message: str | None = None
    code: str | int | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: _Problem | None = None


@dataclass(slots=True)
class Answer:
    """``code`` is ``ok`` or the error's, empty where there is none. ``broken`` says that it is no whole answer, and ``detail``
    why, or what the error says."""

    code: str = ""
    text: str = ""
    detail: str = ""
    broken: bool = False


class Answers:
    """Reads answers. One instance reads any number, of any request."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Body)

    def whole(self, status: int, body: bytes) -> Answer:
        """The answer that a body holds."""
        try:
            found = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Answer(detail=f"{error}: {_start(body)}", broken=status == 200)
        if found.error is not None:
            return _failed(found.error)
        if status != 200:
            return Answer(detail=f"no error object: {_start(body)}")
        if not found.choices or found.choices[0].message is None:
            return Answer(detail=f"a completion without a message: {_start(body)}", broken=True)
        return Answer("ok", found.choices[0].message.content or "")

    def events(self) -> Events:
        """The answer that a stream brings, as it comes."""
        return Events(self._decoder)


class Events:
    """One stream of server-sent events, a line at a time."""

    def __init__(self, decoder: msgspec.json.Decoder[_Body]) -> None:
        self._decoder = decoder
        self._data: list[bytes] = []
        self._pieces: list[str] = []
        self._error: Answer | None = None
        self._done = False

    @property
    def over(self) -> bool:
        """Whether nothing that counts can come any more: ``[DONE]`` came, or an error."""
        return self._done or self._error is not None

    @property
    def begun(self) -> bool:
        """Whether the first token came."""
        return bool(self._pieces)

    def line(self, line: bytes) -> None:
        """The next line, with its end."""
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            self._event(data)

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            found = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._error = Answer(detail=f"{error}: {_start(data)}", broken=True)
            return
        if found.error is not None:
            self._error = _failed(found.error)
            return
        for choice in found.choices or ():
            if choice.delta is not None and choice.delta.content:
                self._pieces.append(choice.delta.content)

    def answer(self) -> Answer:
        """What came; a stream that just ends is broken."""
        text = "".join(self._pieces)
        if self._error is not None:
            self._error.text = text
            return self._error
        if not self._done:
            return Answer(text=text, detail=f"the stream ended without [DONE], after {len(self._pieces)} pieces", broken=True)
        return Answer("ok", text)


def _failed(problem: _Problem) -> Answer:
    return Answer("" if problem.code is None else str(problem.code), detail=problem.message or "")


def _start(body: bytes) -> str:
    return repr(body[:_SHOWN])[1:] if body else "nothing"
