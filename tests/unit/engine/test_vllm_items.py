"""Prompts for vLLM: one placeholder an item, embeddings beside them; what it would take for something else is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.language.engine.interface import EngineStartError, Prompt, Span
from services.language.engine.vllm.items import NotServedError, divided, form_of
from services.language.models.facts import LanguageFacts
from shared.identity import Grid, MediaItem, Modality

WIDTH = 8


def item(name: str, kind: Modality, grid: Grid, seconds: float | None = None) -> MediaItem:
    tokens = grid[0] * grid[1] * grid[2] // 4
    made = MediaItem(kind, tokens, grid, seconds_per_grid=seconds)
    made.embeds = torch.full((tokens, WIDTH), float(ord(name)))
    made.set_hash(name * 32)
    return made


def prompt_of(facts: LanguageFacts, *parts: int | MediaItem) -> Prompt:
    """Plain tokens, and items in their places."""
    ids: list[int] = []
    spans = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        else:
            spans.append(Span(len(ids), part, 0, part.num_tokens))
            ids += [facts.half.placeholders[part.modality]] * part.num_tokens
    return Prompt(ids, facts.half.positions(ids, spans), tuple(spans))


def test_each_item_gives_way_to_one_placeholder(checkpoint: Callable[[str], Path]) -> None:
    facts = LanguageFacts(checkpoint("qwen2_5_vl"))
    image, video = facts.half.placeholders["image"], facts.half.placeholders["video"]
    first, film, last = item("a", "image", (1, 4, 4)), item("b", "video", (2, 2, 4), 1.0), item("c", "image", (1, 2, 6))
    found = divided(prompt_of(facts, 7, first, film, 8, last), form_of(facts), facts.half.placeholders)
    assert found.token_ids == [7, image, video, 8, image]
    assert found.hashes == {"image": ["a" * 32, "c" * 32], "video": ["b" * 32]}
    assert found.data["image"]["image_embeds"][:, 0].tolist() == [97.0] * 4 + [99.0] * 3
    assert found.data["image"]["image_grid_thw"].tolist() == [[1, 4, 4], [1, 2, 6]]
    assert found.data["video"]["video_grid_thw"].tolist() == [[2, 2, 4]]


def test_deepstack_levels_stand_beside_the_rows(checkpoint: Callable[[str], Path]) -> None:
    facts = LanguageFacts(checkpoint("qwen3_vl"))
    picture = item("a", "image", (1, 4, 4))
    picture.deepstack = (torch.full((4, WIDTH), 1.0), torch.full((4, WIDTH), 2.0))
    found = divided(prompt_of(facts, picture), form_of(facts), facts.half.placeholders)
    assert found.data["image"]["image_embeds"][0].tolist() == [97.0] * WIDTH + [1.0] * WIDTH + [2.0] * WIDTH


def test_rows_alone_are_a_list(checkpoint: Callable[[str], Path]) -> None:
    facts = LanguageFacts(checkpoint("llava"))
    found = divided(prompt_of(facts, item("a", "image", (1, 4, 4)), 5), form_of(facts), facts.half.placeholders)
    assert [rows.shape for rows in found.data["image"]] == [(4, WIDTH)]


def test_text_has_no_items(checkpoint: Callable[[str], Path]) -> None:
    facts = LanguageFacts(checkpoint("llava"))
    found = divided(prompt_of(facts, 1, 2, 3), form_of(facts), facts.half.placeholders)
    assert (found.token_ids, found.data, found.hashes) == ([1, 2, 3], {}, {})


def test_what_vllm_would_take_for_something_else_is_refused(checkpoint: Callable[[str], Path]) -> None:
    facts = LanguageFacts(checkpoint("qwen2_5_vl"))
    slow = prompt_of(facts, item("a", "video", (2, 2, 4), 0.5))
    with pytest.raises(NotServedError, match="videos of this family"):
        divided(slow, form_of(facts), facts.half.placeholders)
    parted = item("a", "image", (1, 4, 4))
    spans = (Span(0, parted, 0, 2), Span(3, parted, 2, 2))
    with pytest.raises(NotServedError, match="parted"):
        divided(Prompt([1] * 5, facts.half.positions([1] * 5, []), spans), form_of(facts), facts.half.placeholders)
    with pytest.raises(NotServedError, match="no video"):
        divided(slow, form_of(LanguageFacts(checkpoint("qwen3_vl"))), facts.half.placeholders)


def test_families_that_vllm_takes_no_embeddings_of_are_refused_by_name(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(EngineStartError, match=r"family gemma3; it serves .*qwen2_5_vl"):
        form_of(LanguageFacts(checkpoint("gemma3")))
