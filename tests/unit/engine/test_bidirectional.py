"""Gemma 3's pictures, whose tokens see each other in both directions: as in transformers, however the engine cuts prompts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from services.language.engine.interface import EngineRequest, Prompt, Sampling, Span
from services.language.engine.torch.core import EngineCore
from services.language.engine.torch.runner import Runner
from services.language.models.gemma3 import Gemma3LanguageHalf
from shared.identity import MediaItem
from tests.unit.engine.decoders import BLOCK, GEMMA, words
from tests.unit.engine.harness import run

TOKENS = 16
WINDOW = 6
"""Of the sliding layers: less than a picture."""
BEGIN, END, PICTURE = 126, 127, 128
"""The marks around a picture, and the token in between, which lies outside the vocabulary."""

Part = list[int] | int
"""Tokens of text, or the number of a picture."""


def look(number: int) -> list[Part]:
    """A picture as Gemma's prompts have it."""
    return [[BEGIN], number, [END]]


class Gemma:
    """The whole with random weights, and its decoder in the engine."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        config = Gemma3Config(
            text_config={**GEMMA, "query_pre_attn_scalar": 16, "sliding_window": WINDOW, "layer_types": kinds},
            vision_config={"model_type": "siglip_vision_model", **vision, "image_size": 32, "patch_size": 8},
            mm_tokens_per_image=TOKENS,
            image_token_index=PICTURE,
            boi_token_index=BEGIN,
            eoi_token_index=END,
            tie_word_embeddings=False,
        )
        self.whole: Any = Gemma3ForConditionalGeneration(config).eval().requires_grad_(False)
        with torch.no_grad():
            self.whole.model.multi_modal_projector.mm_input_projection_weight.normal_(std=0.1)
        self.half = Gemma3LanguageHalf(config, ["image"])
        self.runner = Runner(self.half, copy.deepcopy(self.whole), torch.device("cpu"), torch.float32, BLOCK)

    def core(self, blocks: int = 512, batch: int = 64) -> EngineCore:
        return EngineCore(self.runner, blocks, BLOCK, 64, batch)

    def pixels(self, number: int) -> Tensor:
        return torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(number))

    @torch.inference_mode()
    def request(self, parts: Sequence[Part], max_tokens: int = 10, **sampling: Any) -> EngineRequest:
        ids: list[int] = []
        spans: list[Span] = []
        for part in parts:
            if isinstance(part, int):
                item = MediaItem("image", TOKENS)
                item.embeds = self.whole.get_image_features(self.pixels(part)).pooler_output[0]
                item.set_hash(f"{part:032x}")
                spans.append(Span(len(ids), item, 0, TOKENS))
                ids += [PICTURE] * TOKENS
            else:
                ids += part
        prompt = Prompt(ids, self.half.positions(ids, spans), tuple(spans))
        return EngineRequest("r", prompt, Sampling(max_tokens, **{"temperature": 0, **sampling}))

    @torch.inference_mode()
    def expected(self, parts: Sequence[Part], max_tokens: int = 10) -> list[int]:
        """Greedy tokens of transformers' ``generate``."""
        ids = torch.tensor([self.request(parts).prompt.token_ids])
        pictures = [self.pixels(part) for part in parts if isinstance(part, int)]
        shown = {"pixel_values": torch.cat(pictures)} if pictures else {}
        out = self.whole.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            token_type_ids=(ids == PICTURE).int(),
            **shown,
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=None,
        )
        tokens: list[int] = out[0, ids.shape[1] :].tolist()
        return tokens


CASES: dict[str, list[Part]] = {
    "text": [words(1, 20)],
    "a picture in the middle": [words(2, 6), *look(1), words(3, 5)],
    "adjacent pictures first": [*look(2), *look(3), words(4, 2)],
    "a picture last": [words(5, 11), [BEGIN], 4],
    "three pictures": [words(6, 2), *look(5), words(7, 1), *look(6), words(8, 30), *look(7), words(9, 1)],
}


@pytest.fixture(scope="module")
def gemma() -> Gemma:
    return Gemma()


@pytest.fixture(scope="module")
def expected(gemma: Gemma) -> dict[str, list[int]]:
    return {name: gemma.expected(parts) for name, parts in CASES.items()}


def test_each_alone_in_one_chunk(gemma: Gemma, expected: dict[str, list[int]]) -> None:
    for name, parts in CASES.items():
        assert run(gemma.core(batch=1000), {0: gemma.request(parts)})[0] == expected[name], name


@pytest.fixture
def in_one_direction(gemma: Gemma) -> Iterator[None]:
    gemma.half.bidirectional = False
    yield
    del gemma.half.bidirectional


@pytest.mark.usefixtures("in_one_direction")
def test_it_matters(gemma: Gemma, expected: dict[str, list[int]]) -> None:
    """Else the other tests would prove nothing."""
    for name, parts in CASES.items():
        assert (run(gemma.core(), {0: gemma.request(parts)})[0] == expected[name]) == (name == "text"), name


@pytest.mark.parametrize("batch", [1, 3, 7, 17, 40])
def test_together_in_chunks_smaller_than_a_picture(gemma: Gemma, expected: dict[str, list[int]], batch: int) -> None:
    tokens = run(gemma.core(batch=batch), {number: gemma.request(parts) for number, parts in enumerate(CASES.values())})
    assert list(tokens.values()) == list(expected.values())


def test_a_known_beginning_that_ends_within_a_picture(gemma: Gemma) -> None:
    core = gemma.core()
    # The picture is the places 6..22, and the block from 20 on has text behind it, which differs.
    for seed in (10, 11, 10):
        parts: list[Part] = [words(12, 5), *look(8), words(seed, 7)]
        assert run(core, {0: gemma.request(parts)})[0] == gemma.expected(parts)
    assert core.load().prefix_tokens_found == 20 + 28


def test_a_known_beginning_that_leaves_the_last_token_of_a_picture(gemma: Gemma) -> None:
    core = gemma.core()
    parts: list[Part] = [words(13, 4), [BEGIN], 9]
    for _ in range(2):
        assert run(core, {0: gemma.request(parts)})[0] == gemma.expected(parts)
    assert core.load().prefix_tokens_found == 20


def test_after_preemption(gemma: Gemma) -> None:
    """What comes back finds a beginning of its own that ends within its picture, or none at all."""
    kinds: list[list[Part]] = [[words(20 + number, 6), *look(number), words(30 + number, 2)] for number in range(5)]
    core = gemma.core(blocks=22, batch=24)
    tokens = run(core, {number: gemma.request(parts, 24) for number, parts in enumerate(kinds)})
    assert list(tokens.values()) == [gemma.expected(parts, 24) for parts in kinds]
    assert core.load().preemptions > 0


def test_a_repetition_penalty_passes_over_tokens_outside_the_vocabulary(gemma: Gemma) -> None:
    request = gemma.request(CASES["a picture in the middle"], repetition_penalty=1.3)
    assert len(run(gemma.core(), {0: request})[0]) == 10
