"""SmolVLM, which has a chat template of its own for conversations with videos."""

from __future__ import annotations

from collections.abc import Sequence

from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE

from services.language.models.generic import LanguageHalf
from shared.identity import Modality


class SmolVLMLanguageHalf(LanguageHalf):
    """Transformers takes that one whatever the checkpoint brings."""

    def template_for(self, media: Sequence[Modality]) -> str | None:
        return str(DEFAULT_CHAT_TEMPLATE) if "video" in media else None
