"""What clients ask, and the right answer."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from tests.chats import MODEL, data_url
from tests.conformance.conftest import SCENE

ASK = "Describe the picture."
ANSWER = "A red circle at the top left and a blue square at the bottom right."
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]

PLAIN: dict[str, Any] = {"model": MODEL, "temperature": 0}


def about(url: str = "") -> list[Any]:
    """A question about the scene, which is at ``url``, or in the request itself."""
    picture = {"type": "image_url", "image_url": {"url": url or data_url(SCENE)}}
    return [{"role": "user", "content": [picture, {"type": "text", "text": ASK}]}]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Shape(BaseModel):
    """What a picture shows."""

    colour: Colour
    corners: int
    round: bool


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Rome"]},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
