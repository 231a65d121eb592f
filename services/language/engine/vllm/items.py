"""Prompts as vLLM takes them: token ids with one placeholder an item, and the items' embeddings beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from services.language.engine.interface import EngineStartError, Prompt
from services.language.models.facts import LanguageFacts
from shared.identity import MediaItem, Modality


class NotServedError(ValueError):
    """This engine does not take such an item; the message says which."""


class Form(ABC):
    """How vLLM takes the items of a family."""

    modalities: frozenset[Modality] = frozenset({"image"})

    @abstractmethod
    def data(self, kind: Modality, items: Sequence[MediaItem]) -> Any:
        """All items of one modality of a prompt, in order, as an entry of ``multi_modal_data``.

        Raises:
            NotServedError: vLLM would take one of them for something else.
        """


class Rows(Form):
    """Rows of embeddings and nothing else: LLaVA and its like."""

    def data(self, kind: Modality, items: Sequence[MediaItem]) -> Any:  # noqa: ARG002
        return [item.embeds for item in items]


class Grids(Form):
    """All rows in one tensor, and the grids of patches that tell the items apart: the Qwen-VL families. Deepstack levels stand
    beside the rows."""

    modalities: frozenset[Modality] = frozenset({"image", "video"})

    def data(self, kind: Modality, items: Sequence[MediaItem]) -> Any:
        rows = [torch.cat([_embeds(item), *item.deepstack], dim=1) if item.deepstack else _embeds(item) for item in items]
        grids = torch.tensor([item.grid_thw for item in items])
        return {f"{kind}_embeds": torch.cat(rows), f"{kind}_grid_thw": grids}


class TimelessGrids(Grids):
    """The same where a video's positions depend on its seconds, which vLLM's embedding input has no place for."""

    def data(self, kind: Modality, items: Sequence[MediaItem]) -> Any:
        if any(item.seconds_per_grid not in (None, 1.0) for item in items):
            raise NotServedError("vLLM takes no videos of this family as embeddings, except at one grid step a second")
        return super().data(kind, items)


class GridsOfPictures(Grids):
    """The same where a video's tokens are parted by its timestamps, which vLLM would write in words of its own."""

    modalities: frozenset[Modality] = frozenset({"image"})


_FORMS: Mapping[str, Form] = {
    "qwen2_vl": Grids(),
    "qwen2_5_vl": TimelessGrids(),
    "qwen3_vl": GridsOfPictures(),
    "qwen3_vl_moe": GridsOfPictures(),
    "llava": Rows(),
    "llava_onevision": Rows(),
}


def form_of(facts: LanguageFacts) -> Form:
    """How vLLM takes items of a checkpoint.

    Raises:
        EngineStartError: it takes none.
    """
    form = _FORMS.get(facts.model_type)
    if form is None:
        known = ", ".join(sorted(_FORMS))
        raise EngineStartError(f"the vllm engine does not serve the family {facts.model_type}; it serves {known}")
    if getattr(getattr(facts.config, "vision_config", None), "model_type", None) == "pixtral":
        raise EngineStartError("the vllm engine does not serve Pixtral, of which vLLM takes no embeddings")
    return form


@dataclass(frozen=True, slots=True)
class Divided:
    """A prompt's parts for ``TokensPrompt``. ``hashes`` are the items' identities, by modality as ``data``."""

    token_ids: list[int]
    data: dict[str, Any]
    hashes: dict[str, list[str]]


def divided(prompt: Prompt, form: Form, placeholders: Mapping[Modality, int]) -> Divided:
    """Each item's tokens give way to one placeholder, which vLLM puts them in the place of again.

    Raises:
        NotServedError: an item is of a kind, or has tokens, that vLLM would not make the same of.
    """
    token_ids: list[int] = []
    items: list[MediaItem] = []
    at = 0
    for span in prompt.spans:
        item = span.item
        if item.modality not in form.modalities:
            raise NotServedError(f"vLLM takes no {item.modality} as embeddings")
        if span.tokens != item.num_tokens:
            raise NotServedError("vLLM takes no items of this family whose tokens are parted by others")
        token_ids += prompt.token_ids[at : span.start]
        token_ids.append(placeholders[item.modality])
        items.append(item)
        at = span.start + span.tokens
    token_ids += prompt.token_ids[at:]
    ordered = sorted(items, key=lambda item: item.modality)  # sorted() keeps the order within a modality
    of_kind = {kind: list(some) for kind, some in groupby(ordered, key=lambda item: item.modality)}
    return Divided(
        token_ids,
        {kind: form.data(kind, some) for kind, some in of_kind.items()},
        {kind: [item.content_hash for item in some] for kind, some in of_kind.items()},
    )


def _embeds(item: MediaItem) -> torch.Tensor:
    assert item.embeds is not None
    return item.embeds
