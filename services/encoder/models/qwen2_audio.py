"""Qwen2-Audio, whose transformers class computes what it hears within its ``forward`` only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_bidirectional_mask

from services.encoder.media import Media, Sound
from services.encoder.models.generic import EncoderHalf
from shared.identity import MediaItem, Modality


class Qwen2AudioEncoderHalf(EncoderHalf):
    """Sounds are padded to the length of the tower's window, and what comes of the padding is cut off. Longer ones are refused:
    the processor would drop the rest of them without a word."""

    def features(self, media: Media, form: str) -> MediaItem:
        window = self.processor.feature_extractor.n_samples
        if isinstance(media, Sound) and len(media.samples) > window:
            lasts, most = len(media.samples) / media.rate, window / media.rate
            raise ValueError(f"The sound lasts {lasts:.1f} seconds; the model hears {most:g} at most.")
        return super().features(media, form)

    def tower(self, modality: Modality, inputs: dict[str, Tensor]) -> Any:  # noqa: ARG002
        """From ``input_features`` ``(sounds, mels, frames)`` and ``feature_attention_mask`` ``(sounds, frames)``."""
        model, features = self._model.base_model, inputs["input_features"]
        heard, tokens = model.audio_tower._get_feat_extract_output_lengths(inputs["feature_attention_mask"].sum(-1))
        places = torch.arange((features.shape[-1] - 2) // 2 + 1, device=features.device)
        mask = create_bidirectional_mask(
            config=model.audio_tower.config,
            inputs_embeds=features.new_empty(len(features), len(places), 1),
            attention_mask=(places < heard[:, None]).long(),
        )
        found = model.multi_modal_projector(model.audio_tower(features, attention_mask=mask).last_hidden_state)
        return SimpleNamespace(pooler_output=[one[:count] for one, count in zip(found, tokens.tolist(), strict=True)])
