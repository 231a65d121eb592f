"""From a processor's replacement of a placeholder to the layout of an item."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shared.layout import Layout


class Layouts:
    """Makes layouts of what one tokenizer's processor writes in the place of items. Its tokens, which may be thousands, are
    looked at here, once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = re.compile("|".join(re.escape(str(token)) for token in tokenizer.added_tokens_decoder.values()))

    def of(self, token_ids: Sequence[int], replacement: str | None) -> Layout:
        """The layout of an item whose placeholder gives way to ``replacement``, which alone is ``token_ids``.

        Plain text at its edges is kept as text, since it becomes other tokens next to other text; between two special tokens it
        does not.
        """
        marks = [] if replacement is None else list(self._special.finditer(replacement))
        if replacement is None or not marks:
            return Layout.of(token_ids)
        begin, end = marks[0].start(), marks[-1].end()
        before, core, after = replacement[:begin], replacement[begin:end], replacement[end:]
        if before or after:
            token_ids = self._tokenizer(core, add_special_tokens=False)["input_ids"]
        return Layout.of(token_ids, before, after)
