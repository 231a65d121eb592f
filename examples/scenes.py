"""The synthetic world of the demo model: scenes, their pictures, questions about them, and the right answers.

A scene is a 2x2 grid of cells that holds one to three objects, each a colour and a shape. Everything is a pure function of
a seeded ``random.Random``, so that training, tests and load tests agree on what the right answer is.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 30),
    "orange": (255, 140, 0),
    "yellow": (250, 220, 20),
    "green": (20, 150, 50),
    "cyan": (30, 210, 220),
    "blue": (30, 60, 220),
    "purple": (150, 40, 170),
    "black": (15, 15, 15),
}
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "cross")
POSITIONS: tuple[str, ...] = ("top left", "top right", "bottom left", "bottom right")
NUMBERS: tuple[str, ...] = ("no", "one", "two", "three")
ORDINALS: tuple[str, ...] = ("first", "second", "third")
BACKGROUND = 240

COLOUR_TABLE = np.array(list(COLOURS.values()), dtype=np.float32)
COLOUR_NAMES: tuple[str, ...] = tuple(COLOURS)


@dataclass(frozen=True, slots=True)
class Thing:
    """One object: indices into ``COLOUR_NAMES``, ``SHAPES`` and ``POSITIONS``."""

    colour: int
    shape: int
    position: int

    def __str__(self) -> str:
        colour, shape = COLOUR_NAMES[self.colour], SHAPES[self.shape]
        return f"{'an' if colour[0] in 'aeiou' else 'a'} {colour} {shape}"


@dataclass(frozen=True, slots=True)
class Scene:
    """One to three things, ordered by position (reading order)."""

    things: tuple[Thing, ...]

    def at(self, position: int) -> Thing | None:
        """The thing at ``position``, if there is one."""
        return next((thing for thing in self.things if thing.position == position), None)


@dataclass(frozen=True, slots=True)
class Question:
    """A question in plain words and its one right answer."""

    kind: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Exam:
    """Pictures shown together, a question about one of them, and how to lay both out in a message.

    ``layout`` is a sequence of picture indices and strings, in the order of the message's content parts.
    """

    scenes: tuple[Scene, ...]
    layout: tuple[int | str, ...]
    question: Question


def random_scene(rng: random.Random) -> Scene:
    """A scene with one to three things at distinct positions."""
    positions = sorted(rng.sample(range(4), rng.randint(1, 3)))
    return Scene(tuple(Thing(rng.randrange(8), rng.randrange(4), position) for position in positions))


# ---------------------------------------------------------------------------------------------------------- drawing


def draw_cells(
    colours: NDArray[np.float32],
    shapes: NDArray[np.int64],
    centres: NDArray[np.float32],
    radii: NDArray[np.float32],
    size: int,
) -> NDArray[np.float32]:
    """Draws ``n`` cells of ``size`` x ``size`` pixels, one thing each, with edges one pixel soft.

    colours ``(n, 3)`` in 0..255; shapes ``(n,)``; centres ``(n, 2)`` and radii ``(n,)`` in units of a cell. Returns
    ``(n, size, size, 3)`` float32 in 0..255. Shapes are drawn from their signed distances (negative inside).
    """
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size
    x = (axis[None, None, :] - centres[:, 0, None, None]) / radii[:, None, None]
    y = (axis[None, :, None] - centres[:, 1, None, None]) / radii[:, None, None]
    ax, ay = np.abs(x), np.abs(y)
    distances = np.stack(
        np.broadcast_arrays(
            np.sqrt(x * x + y * y) - 1.0,
            np.maximum(ax, ay) - 0.88,
            _triangle(ax, y),
            np.maximum(np.minimum(ax, ay) - 0.32, np.maximum(ax, ay) - 1.0),
        ),
        axis=0,
    )
    distance = distances[shapes, np.arange(len(shapes))] * radii[:, None, None] * size
    alpha = np.clip(0.5 - distance, 0.0, 1.0)[..., None]
    drawn: NDArray[np.float32] = (BACKGROUND * (1.0 - alpha) + colours[:, None, None, :] * alpha).astype(np.float32)
    return drawn


def _triangle(ax: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Signed distance (up to corners) of an upright triangle with apex (0, -1) and base y = 0.8."""
    half_base, height = 1.0, 1.8
    slope = float(np.hypot(half_base, height))
    side = (height * ax - half_base * (y + 1.0)) / slope
    distance: NDArray[Any] = np.maximum(side, y - 0.8)
    return distance


def draw(scene: Scene, size: int = 224, seed: int = 0) -> Image.Image:
    """The picture of a scene, ``size`` x ``size`` pixels; ``seed`` moves, scales and tints the things a little."""
    rng = random.Random(seed)
    cell = size // 2
    canvas = np.full((2 * cell, 2 * cell, 3), BACKGROUND, dtype=np.float32)
    for thing in scene.things:
        tint = [rng.uniform(-8, 8) for _ in range(3)]
        drawn = draw_cells(
            np.clip(COLOUR_TABLE[[thing.colour]] + np.array([tint], dtype=np.float32), 0, 255),
            np.array([thing.shape]),
            np.array([[rng.uniform(0.44, 0.56), rng.uniform(0.44, 0.56)]], dtype=np.float32),
            np.array([rng.uniform(0.28, 0.38)], dtype=np.float32),
            cell,
        )[0]
        row, column = divmod(thing.position, 2)
        canvas[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = drawn
    return Image.fromarray(np.rint(canvas).astype(np.uint8))


def png(scene: Scene, size: int = 224, seed: int = 0) -> bytes:
    """The picture of a scene as PNG bytes."""
    buffer = io.BytesIO()
    draw(scene, size, seed).save(buffer, format="PNG")
    return buffer.getvalue()


# -------------------------------------------------------------------------------------------------------- questions


def describe(scene: Scene) -> str:
    """``A red circle at the top left and a blue square at the bottom right.``"""
    phrases = [f"{thing} at the {POSITIONS[thing.position]}" for thing in scene.things]
    text = phrases[0] if len(phrases) == 1 else ", ".join(phrases[:-1]) + " and " + phrases[-1]
    return text[0].upper() + text[1:] + "."


def sentence(thing: Thing | None) -> str:
    """``A red circle.`` or ``Nothing.``"""
    return "Nothing." if thing is None else f"{str(thing).capitalize()}."


Weights = Mapping[str, int]
USUAL: Weights = {"describe": 4, "count": 2, "position": 4, "colour": 3}
"""How often each kind of question is asked, relative to the others."""


def ask(rng: random.Random, scenes: Sequence[Scene], weights: Weights = USUAL) -> Question:
    """A random question about one of ``scenes`` (by its ordinal, when there are several)."""
    index = rng.randrange(len(scenes))
    scene = scenes[index]
    several = len(scenes) > 1
    picture = f"the {ORDINALS[index]} picture" if several else rng.choice(("the picture", "this picture"))
    kind = rng.choices(list(weights), list(weights.values()))[0]
    if kind == "describe":
        text = rng.choice((f"Describe {picture}.", f"What is in {picture}?"))
        return Question(kind, text, describe(scene))
    if kind == "count":
        where = f"in {picture}" if several or rng.random() < 0.5 else "there"
        return Question(kind, f"How many objects are {where}?", f"{NUMBERS[len(scene.things)].capitalize()}.")
    if kind == "position":
        position = rng.randrange(4)
        if rng.random() < 0.5:
            position = rng.choice(scene.things).position
        where = f" of {picture}" if several or rng.random() < 0.3 else ""
        return Question(kind, f"What is at the {POSITIONS[position]}{where}?", sentence(scene.at(position)))
    shapes = [thing.shape for thing in scene.things]
    unique = [thing for thing in scene.things if shapes.count(thing.shape) == 1]
    where = f" in {picture}" if several or rng.random() < 0.3 else ""
    colour_word = rng.choice(("colour", "colour", "color"))
    if unique and rng.random() < 0.85:
        thing = rng.choice(unique)
        text = f"What {colour_word} is the {SHAPES[thing.shape]}{where}?"
        return Question(kind, text, f"{COLOUR_NAMES[thing.colour].capitalize()}.")
    missing = rng.choice([shape for shape in range(4) if shape not in shapes])
    return Question(kind, f"What {colour_word} is the {SHAPES[missing]}{where}?", f"There is no {SHAPES[missing]}.")


def lay_out(rng: random.Random, pictures: int, text: str) -> tuple[int | str, ...]:
    """Places pictures and text in one message: pictures first (usual), last, or with words between."""
    if rng.random() < 0.15:
        return (text, *range(pictures))
    if pictures > 1 and rng.random() < 0.3:
        between: list[int | str] = []
        for index in range(pictures):
            between += [f"The {ORDINALS[index]} picture:", index]
        return (*between, text)
    return (*range(pictures), text)


def random_exam(rng: random.Random, pictures: int | None = None) -> Exam:
    """One to three scenes and a question about one of them."""
    count = rng.choice((1, 1, 2, 3)) if pictures is None else pictures
    scenes = tuple(random_scene(rng) for _ in range(count))
    question = ask(rng, scenes)
    return Exam(scenes, lay_out(rng, count, question.text), question)


TALK: dict[str, str] = {
    "Hello!": "Hello! Show me a picture and ask me about it.",
    "Hello": "Hello! Show me a picture and ask me about it.",
    "Hi": "Hello! Show me a picture and ask me about it.",
    "Who are you?": "I am a small demo model that answers questions about simple pictures.",
    "What are you?": "I am a small demo model that answers questions about simple pictures.",
    "What can you do?": "I can describe, count, and name the colours and shapes in a picture.",
    "Which colours do you know?": "Red, orange, yellow, green, cyan, blue, purple and black.",
    "Which shapes do you know?": "Circle, square, triangle and cross.",
    "How many pictures can I send?": "One, two or three.",
    "Thank you.": "You are welcome.",
    "Thanks!": "You are welcome.",
    "Goodbye.": "Goodbye!",
    "Say yes.": "Yes.",
    "Say no.": "No.",
}
NO_PICTURE = "I see no picture."


def small_talk(rng: random.Random) -> Question:
    """A question that needs no picture, or one that needs a picture and has none."""
    if rng.random() < 0.3:
        return Question("no picture", ask(rng, [random_scene(rng)]).text, NO_PICTURE)
    text = rng.choice(list(TALK))
    return Question("talk", text, TALK[text])
