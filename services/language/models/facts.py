"""What is known of a checkpoint's language half from its configuration and tokenizer, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from services.language.models.generic import LanguageHalf
from shared.checkpoint import chat_template_of, pick_device, pick_dtype
from shared.families import open_family
from shared.foreign import read_part
from shared.identity import Modality


class LanguageFacts:
    """Tokenizer, sizes and family of one checkpoint, for everything in front of the engine.

    Raises:
        ValueError: the family is not served, or the checkpoint has no chat template.
        OSError: the configuration or the tokenizer cannot be read.
    """

    def __init__(
        self, folder: Path, device: str = "auto", dtype: str = "auto", families: str = "", trusted: bool = False
    ) -> None:
        self.family, self.config = open_family(folder, families, trusted)
        self.half: LanguageHalf = self.family.half("language")(self.config, self.family.modalities)
        self.tokenizer: Any = read_part(AutoTokenizer, folder, trusted)
        self.tokenizer.chat_template = chat_template_of(folder) or self.tokenizer.chat_template
        if self.tokenizer.chat_template is None:
            raise ValueError(f"{folder} has no chat template, which chat completions need")
        for modality in self.family.modalities:
            if modality not in self.half.placeholders:
                self.half.placeholders[modality] = self._placeholder(modality)
        self.dtype = pick_dtype(dtype, pick_device(device))
        text: Any = self.config.get_text_config()
        self.model_type: str = self.config.model_type
        self.vocab_size: int = text.vocab_size
        self.context_length: int = text.max_position_embeddings
        self.eos_ids: frozenset[int] = self._end_tokens(folder)

    def _placeholder(self, modality: Modality) -> int:
        """The token of what the template writes for an item that the configuration has no token for: its embeddings go to those
        of other kinds. Where that is no token but text, it becomes one, which the decoder never sees."""
        written = getattr(self.tokenizer, f"{modality}_token", None) or f"<{modality}>"
        if written not in self.tokenizer.get_vocab():
            self.tokenizer.add_tokens([written], special_tokens=True)
        return int(self.tokenizer.convert_tokens_to_ids(written))

    def _end_tokens(self, folder: Path) -> frozenset[int]:
        found: set[int | None] = {self.tokenizer.eos_token_id}
        if (folder / "generation_config.json").is_file():
            declared = GenerationConfig.from_pretrained(folder).eos_token_id
            found.update(declared if isinstance(declared, list) else [declared])
        return frozenset(token for token in found if token is not None)
