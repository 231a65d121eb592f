"""SmolVLM, whose settings say that frames are not chosen, but whose prompts are made of chosen ones."""

from __future__ import annotations

from services.encoder.models.generic import EncoderHalf


class SmolVLMEncoderHalf(EncoderHalf):
    """So does transformers where it makes the prompt."""

    @property
    def samples_frames(self) -> bool:
        return True
