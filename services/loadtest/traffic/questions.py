"""What clients ask: bodies of chat completions, each with the answer that is right, drawn by a scenario's mix."""

from __future__ import annotations

import base64
import json
import math
import random
from dataclasses import dataclass

from examples.scenes import ORDINALS, TALK
from services.loadtest.run import Kind
from services.loadtest.scenario import Traffic
from services.loadtest.traffic.pictures import REPEATED, SCENES, Pictures, answer, repeated_scene

_LEAVES_WITHIN = (0.001, 0.3)  # seconds
_DESCRIBE = "Describe the picture."


@dataclass(frozen=True, slots=True)
class Question:
    """One request to send, and what is right to answer.

    ``expected`` is None where answers are not judged, and for what is no picture. ``fresh`` says that all pictures are new, so
    that no cache can know them. ``hang_up`` is when the client leaves, in seconds after it began to send, or None where it
    stays. From a stream it then also leaves with the first token.
    """

    kind: Kind
    body: bytes
    expected: str | None
    fresh: bool
    streamed: bool
    hang_up: float | None = None


class Questions:
    """Draws questions at random: kinds, scenes and who leaves by ``seed``, but the new pictures are new in every run.

    Workers of one load test need seeds of their own.
    """

    def __init__(self, traffic: Traffic, model: str, semantics: bool = True, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._pictures = Pictures()
        self._semantics = semantics
        self._streaming = traffic.streaming
        self._hang_up = traffic.hang_up
        self._kinds = [kind for kind in Kind if getattr(traffic.mix, kind)]
        self._weights = [float(getattr(traffic.mix, kind)) for kind in self._kinds]
        self._head = f'{{"model":{json.dumps(model)},"temperature":0,"max_tokens":{traffic.max_tokens},'.encode()
        self._talk = list(TALK.items())

    def prepare(self) -> None:
        """Draws the pictures that will be needed now, rather than while the load runs."""
        if self._kinds != [Kind.TEXT]:
            self._pictures.prepare(huge=Kind.HUGE in self._kinds)

    def next(self) -> Question:
        """Another question."""
        rng = self._rng
        kind = rng.choices(self._kinds, self._weights)[0]
        parts, expected, fresh = self._ask(kind)
        streamed = rng.random() < self._streaming
        hang_up = None
        if rng.random() < self._hang_up:
            low, high = map(math.log, _LEAVES_WITHIN)
            hang_up = math.exp(rng.uniform(low, high))
        stream = b'"stream":true,' if streamed else b""
        body = b"".join((self._head, stream, b'"messages":[{"role":"user","content":[', b",".join(parts), b"]}]}"))
        return Question(kind, body, expected if self._semantics else None, fresh, streamed, hang_up)

    def _ask(self, kind: Kind) -> tuple[list[bytes], str | None, bool]:
        """Parts of the message, the right answer, and whether no cache can know its pictures."""
        rng = self._rng
        if kind is Kind.TEXT:
            text, right = rng.choice(self._talk)
            return [_text(text)], right, True
        if kind is Kind.IMAGE:
            number = rng.randrange(SCENES)
            return [_image(self._pictures.new(number)), _text(_DESCRIBE)], answer(number), True
        if kind is Kind.IMAGES:
            scenes, which = several(rng)
            parts = []
            for ordinal, number in zip(ORDINALS, scenes, strict=False):
                parts += [_text(f"The {ordinal} picture:"), _image(self._pictures.new(number))]
            return [*parts, _text(f"Describe the {ORDINALS[which]} picture.")], answer(scenes[which]), True
        if kind is Kind.REPEATED:
            which = rng.randrange(REPEATED)
            return [_image(self._pictures.repeated(which)), _text(_DESCRIBE)], answer(repeated_scene(which)), False
        if kind is Kind.HUGE:
            number, picture = self._pictures.huge(rng)
            return [_image(picture), _text(_DESCRIBE)], answer(number), True
        return [_image(self._pictures.broken(rng)), _text(_DESCRIBE)], None, False


def several(rng: random.Random) -> tuple[list[int], int]:
    """Numbers of two or three scenes to be shown together, and which of them the question is about.

    The demo model was seen to describe each of these combinations rightly, which is not so for all that there could be.
    """
    first, count = rng.randrange(SCENES), rng.choice((2, 3))
    return [(first + 37 * index) % SCENES for index in range(count)], rng.randrange(count)


def _text(text: str) -> bytes:
    return b'{"type":"text","text":%s}' % json.dumps(text).encode()


def _image(picture: bytes) -> bytes:
    return b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}' % base64.b64encode(picture)
