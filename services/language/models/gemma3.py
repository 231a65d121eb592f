"""Gemma 3: a picture's tokens see each other in both directions, and another token than theirs stands for it in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.language.models.generic import LanguageHalf
from shared.identity import Modality


class Gemma3LanguageHalf(LanguageHalf):
    """The mark that begins a picture is its placeholder, and stands before its tokens when it is expanded."""

    bidirectional = True

    def __init__(self, config: Any, modalities: Sequence[Modality]) -> None:
        super().__init__(config, modalities)
        self.placeholders = {"image": config.boi_token_index}
