"""JSON of which anything can be misspelled: objects are lists of pairs, so that a key can come twice, and text can be raw."""

from __future__ import annotations

import json
from typing import Any


class Pairs(list[tuple[str, Any]]):
    """An object."""


class Raw(str):
    """What is written as it is, such as ``NaN`` or a number with a thousand digits."""


def parse(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=Pairs)


def spell(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{spell(each)}" for key, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(spell, value)) + "]"
    return json.dumps(value)
