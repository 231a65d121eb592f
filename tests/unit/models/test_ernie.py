"""ERNIE's decoder is told which experts a token goes to as its own processor tells it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from transformers import Ernie4_5_VLMoeConfig
from transformers.models.ernie4_5_vl_moe.processing_ernie4_5_vl_moe import Ernie4_5_VLMoeProcessor

from services.language.models.ernie4_5_vl_moe import ErnieLanguageHalf

MARKS = [f"{kind}_{part}" for kind in ("image", "video") for part in ("token_id", "start_token_id", "end_token_id")]


def test_prompts_as_the_processor_tells_and_answers_as_text() -> None:
    config = Ernie4_5_VLMoeConfig(**{mark: 40 + 2 * at for at, mark in enumerate(MARKS)})
    processor = SimpleNamespace(**{mark: getattr(config, mark) for mark in MARKS})
    ids = list(range(60))
    theirs = Ernie4_5_VLMoeProcessor.create_moe_mm_token_type_ids(processor, np.array([ids]))[0]
    half = ErnieLanguageHalf(config, ["image", "video"])
    [(name, ours)] = half.token_inputs(ids, prompt=True).items()
    assert name == "moe_mm_token_type_ids"
    assert ours.bool().tolist() == (theirs > 0).tolist()
    assert ours.sum() == len(MARKS)
    assert half.token_inputs(ids, prompt=False)[name].tolist() == [0] * len(ids)
