"""LLaVA-OneVision: looks less closely at each picture where a request has several."""

from __future__ import annotations

from collections.abc import Sequence

from services.language.models.generic import LanguageHalf
from shared.identity import Modality


class OneVisionLanguageHalf(LanguageHalf):
    """One picture is cut into tiles; several, videos aside, are each seen as a whole."""

    def forms(self, media: Sequence[Modality]) -> list[str]:
        several = media.count("image") > 1
        return ["several" if several and kind == "image" else "" for kind in media]
