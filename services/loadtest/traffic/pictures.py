"""Pictures of scenes whose descriptions are known, each new to every cache, though drawn only once.

A cache may know a picture by its file or by its pixels as a model's processor leaves them. So each picture has a nonce in
its pixels: a little noise in the background at its upper edge, in blocks of a 64th of its width, so that it survives where the
picture is made smaller. Nothing is drawn there, and what a model says of the picture stays the same.
"""

from __future__ import annotations

import os
import random

import numpy as np

from examples.scenes import BACKGROUND, COLOUR_NAMES, POSITIONS, SHAPES, Scene, Thing, describe, draw
from services.loadtest.traffic.png import Template

SCENES = len(COLOUR_NAMES) * len(SHAPES) * len(POSITIONS)
"""How many scenes of one thing there are."""
REPEATED = 8
"""How many pictures come again and again."""

_SIZE = 64
_HUGE = 2048  # a side: four megapixels
_DRAWN = 512  # what a huge one is enlarged from
_HUGE_SCENES = (5, 46, 81, 122)  # of a huge picture there are a few only, since each takes a while to draw
_BLOCKS = 64
_NOISE = bytes(BACKGROUND + value % 4 for value in range(256))


class Pictures:
    """Makes pictures; what is drawn is kept. A scene goes by its number below ``SCENES``."""

    def __init__(self) -> None:
        self._templates: dict[int, Template] = {}
        self._huge: dict[int, Template] = {}

    def prepare(self, huge: bool = False) -> None:
        """Draws all scenes now rather than when they are first asked for; a huge one takes a tenth of a second."""
        for number in range(SCENES):
            self._template(number)
        for number in _HUGE_SCENES if huge else ():
            self._huge_template(number)

    def new(self, number: int) -> bytes:
        """A PNG of a scene like no other."""
        return self._template(number).png(os.urandom(3 * _BLOCKS).translate(_NOISE))

    def repeated(self, number: int) -> bytes:
        """The same PNG each time, everywhere; ``number`` is below ``REPEATED``."""
        nonce = random.Random(number).randbytes(3 * _BLOCKS)
        return self._template(repeated_scene(number)).png(nonce.translate(_NOISE))

    def huge(self, rng: random.Random) -> tuple[int, bytes]:
        """A scene's number and a new PNG of it, of four megapixels."""
        number = rng.choice(_HUGE_SCENES)
        noise = os.urandom(3 * _BLOCKS).translate(_NOISE)
        row = b"".join([noise[at : at + 3] * (_HUGE // _BLOCKS) for at in range(0, len(noise), 3)])
        return number, self._huge_template(number).png(row)

    def broken(self, rng: random.Random) -> bytes:
        """Bytes that are no picture, though they are sent as one: a PNG cut off, noise, a web page, or none at all."""
        whole = self.new(rng.randrange(SCENES))
        page = b"<!doctype html><title>404 Not Found</title><p>No picture %d here." % rng.getrandbits(64)
        return rng.choice((whole[: len(whole) // 2], os.urandom(len(whole)), page, b""))

    def _template(self, number: int) -> Template:
        found = self._templates.get(number)
        if found is None:
            found = self._templates[number] = Template(np.asarray(draw(scene(number), _SIZE, number)))
        return found

    def _huge_template(self, number: int) -> Template:
        found = self._huge.get(number)
        if found is None:
            times = _HUGE // _DRAWN
            drawn = np.asarray(draw(scene(number), _DRAWN, number))
            found = Template(drawn.repeat(times, 0).repeat(times, 1), band=_HUGE // _BLOCKS)
            self._huge[number] = found
        return found


def scene(number: int) -> Scene:
    """The scene of one thing with this number."""
    colour, rest = number % len(COLOUR_NAMES), number // len(COLOUR_NAMES)
    return Scene((Thing(colour, rest % len(SHAPES), rest // len(SHAPES)),))


def repeated_scene(number: int) -> int:
    """The number of the scene that a repeated picture shows."""
    return (number * 37 + 11) % SCENES


def answer(number: int) -> str:
    """The right description of a scene."""
    return describe(scene(number))
