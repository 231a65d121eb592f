"""What an encoder says of an item is believed only where a prompt of this model can have such an item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from services.language.embeddings.assembly import Assembler
from services.language.models.facts import LanguageFacts
from shared.errors import EmbeddingIncompatible
from shared.identity import MediaItem
from shared.layout import Layout
from shared.wire import Header, pack, read_header
from tests.processes import DEMO_MODEL


@dataclass
class Case:
    """Messages to the demo model, each verified."""

    facts: LanguageFacts

    def assembled(self, **changes: Any) -> MediaItem:
        fields: dict[str, Any] = {
            "request_id": "r",
            "attempt": 0,
            "item": 0,
            "num_items": 1,
            "modality": "image",
            "content_hash": "0" * 32,
            "num_tokens": 4,
            "grid_thw": (1, 4, 4),
            "model_fingerprint": "f",
            "encoder_id": "e",
        }
        header = Header.model_validate(fields | changes)
        shapes = self.facts.half.tensor_shapes(header.num_tokens)
        frames = [bytes(frame) for frame in pack(header, {name: torch.zeros(shape) for name, shape in shapes.items()})]
        read = read_header(frames[0])
        assert isinstance(read, Header)
        return Assembler(self.facts.half, self.facts.dtype, "f", max_item_tokens=64).assemble(read, frames[1:])


@pytest.fixture(scope="module")
def case() -> Case:
    return Case(LanguageFacts(DEMO_MODEL, "cpu", "float32"))


def test_a_layout_of_known_tokens_arrives_as_it_was_sent(case: Case) -> None:
    layout = Layout(((7, 2), (case.facts.half.placeholders["image"], 4), (8, 1)), "before", "after")
    assert case.assembled(layout=layout).layout == layout


@pytest.mark.parametrize(
    ("around", "parts", "told"),
    [
        (10**9, [4], "none of this model"),  # no token at all: the engine would look it up
        (7, [2, 2], "none of this model"),  # the grid says that it is in one piece
        (7, [3], "do not fit"),
        (7, [], "do not fit"),
    ],
)
def test_a_layout_that_no_prompt_can_have_is_incompatible(case: Case, around: int, parts: list[int], told: str) -> None:
    image = case.facts.half.placeholders["image"]
    runs = [(around, 1)]
    for count in parts:
        runs += [(image, count), (around, 1)]
    with pytest.raises(EmbeddingIncompatible, match=told):
        case.assembled(layout=Layout(tuple(runs)))


def test_a_layout_of_too_many_tokens_is_refused_by_their_number(case: Case) -> None:
    layout = Layout(((case.facts.half.placeholders["image"], 4), (7, 2**31 - 1)))
    with pytest.raises(EmbeddingIncompatible, match="2147483651 tokens; at most 64"):
        case.assembled(layout=layout)
