"""The engine's core in this process, fed with real embeddings, and the undivided model to compare with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from services.encoder.models.generic import EncoderHalf, open_half
from services.language.engine.interface import EngineRequest, Prompt, Sampling, Step
from services.language.engine.messages import Failure
from services.language.engine.torch.core import EngineCore
from services.language.engine.torch.guide import Guides
from services.language.engine.torch.runner import Runner
from services.language.models.facts import LanguageFacts
from services.language.output.vocabulary import Vocabulary
from services.language.prompt.expansion import expand
from shared.identity import ContentHasher, MediaItem

Part = str | Image.Image


def picture(seed: int, width: int = 48, height: int = 32) -> Image.Image:
    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height))


@dataclass
class Model:
    """One checkpoint: both halves, and the whole."""

    folder: Path
    facts: LanguageFacts = field(init=False)
    vision: EncoderHalf = field(init=False)
    whole: Any = field(init=False)
    runner: Runner = field(init=False)
    guides: Guides = field(init=False)

    def __post_init__(self) -> None:
        self.facts = LanguageFacts(self.folder)
        self.vision = open_half(self.folder)
        self.whole = AutoModelForImageTextToText.from_pretrained(self.folder).eval()
        self.runner = Runner.load(self.folder, "cpu", "auto", block_size=4)
        self.guides = Guides(lambda: Vocabulary(self.facts.tokenizer, self.facts.eos_ids))
        self._hasher = ContentHasher(b"a secret of tests")

    def core(self, blocks: int = 512, running: int = 64, batch: int = 64) -> EngineCore:
        return EngineCore(self.runner, blocks, 4, running, batch, self.guides)

    def items(self, parts: Sequence[Part]) -> list[MediaItem]:
        items = [self.vision.preprocess(part) for part in parts if isinstance(part, Image.Image)]
        for item in items:
            item.set_hash(self._hasher.hash(item.features))
            self.vision.encode([item])
        return items

    def request(self, parts: Sequence[Part], max_tokens: int = 12, **sampling: Any) -> EngineRequest:
        """A request whose tokens are greedy unless ``sampling`` says otherwise; end tokens do not end it."""
        pad = self.facts.half.placeholders["image"]
        # As the families' templates have it: Qwen's put marks around a picture, LLaVA's do not.
        marks = [getattr(self.facts.config, f"vision_{side}_token_id", None) for side in ("start", "end")]
        place = [token for token in (marks[0], pad, marks[1]) if token is not None]
        ids: list[int] = []
        for part in parts:
            ids += place if isinstance(part, Image.Image) else self.facts.tokenizer.encode(part)
        items = self.items(parts)
        half = self.facts.half
        expanded, spans = expand(ids, items, half.placeholders, half.media_ids)
        prompt = Prompt(expanded, half.positions(expanded, spans), spans)
        return EngineRequest("r", prompt, Sampling(max_tokens, **{"temperature": 0, **sampling}))

    @torch.inference_mode()
    def expected(self, parts: Sequence[Part], max_tokens: int = 12) -> list[int]:
        """Greedy tokens of the undivided model's ``generate``."""
        request = self.request(parts, max_tokens)
        ids = torch.tensor([request.prompt.token_ids])
        inputs: dict[str, Any] = {}
        pictures = [self.vision.preprocess(part) for part in parts if isinstance(part, Image.Image)]
        if pictures:
            inputs = {name: torch.cat([item.features[name] for item in pictures]) for name in pictures[0].features}
            if "image_grid_thw" in inputs:
                inputs["mm_token_type_ids"] = (ids == self.facts.half.placeholders["image"]).int()
        out = self.whole.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            eos_token_id=None,
            **inputs,
        )
        tokens: list[int] = out[0, ids.shape[1] :].tolist()
        return tokens


def run(core: EngineCore, requests: dict[int, EngineRequest], steps: int = 10_000) -> dict[int, list[int]]:
    """Adds all requests, steps until nothing is left, and returns the tokens of each."""
    tokens: dict[int, list[int]] = {number: [] for number in requests}
    for number, request in requests.items():
        core.add(number, request)
    collect(core, tokens, steps)
    return tokens


def collect(core: EngineCore, tokens: dict[int, list[int]], steps: int = 10_000) -> None:
    """Steps until nothing is left, at most ``steps`` times, and adds new tokens to ``tokens``."""
    for _ in range(steps):
        if not core.has_work():
            return
        for number, outcome in core.step().items():
            assert isinstance(outcome, Step), outcome.message if isinstance(outcome, Failure) else outcome
            tokens[number].append(outcome.token_id)
