"""``python -m benchmarks.floor --model tiny``: the floor, transformers' own modules called in a loop in one process.

No HTTP, no scheduling, no hashing, no wire: the stock image processor, the tower, the decoder with a ``DynamicCache``, greedy.
What a service adds to these times is its overhead; what it takes away it has won by batching or by better code.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, DynamicCache, Qwen3VLForConditionalGeneration

from benchmarks.checkpoints import SIZES, ensure
from benchmarks.prompts import jpeg, words

BATCH = 32
NEW_TOKENS = 32
TEXT_TOKENS = 16  # words in a prompt, as in the loads


@dataclass(frozen=True, slots=True)
class Floor:
    """Medians in seconds. ``decode`` is one step at batch 1 and ``decode_batch`` one at batch 32, after a picture and its text.

    The ``text_`` times are those without a picture. JPEG decoding is told beside and is not part of ``ttft``.
    """

    model: str
    threads: int
    jpeg: float
    preprocess: float
    tower: float
    prefill: float
    decode: float
    decode_batch: float
    text_prefill: float
    text_decode: float
    text_decode_batch: float

    @property
    def ttft(self) -> float:
        """Seconds to the first token of one request with one picture."""
        return self.preprocess + self.tower + self.prefill

    @property
    def batch_rate(self) -> float:
        """Tokens/s that decoding gives at batch 32, after a picture."""
        return BATCH / self.decode_batch

    @property
    def text_batch_rate(self) -> float:
        """Tokens/s that decoding gives at batch 32, text only."""
        return BATCH / self.text_decode_batch


def faster(first: Floor, second: Floor) -> Floor:
    """The smaller of two measurements, time by time: the stricter floor on a noisy machine."""
    times = {
        field.name: min(getattr(first, field.name), getattr(second, field.name))
        for field in fields(Floor)
        if field.name not in ("model", "threads")
    }
    return Floor(first.model, first.threads, **times)


def median_time(work: Callable[[], object], runs: int) -> float:
    """Median seconds of ``runs`` calls, after one that does not count."""
    work()
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


class Undivided:
    """The whole model, and one prompt with a picture and one without."""

    def __init__(self, folder: Path) -> None:
        self.processor: Any = AutoImageProcessor.from_pretrained(folder)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = Qwen3VLForConditionalGeneration.from_pretrained(folder).eval()
        self.picture = jpeg(0, 512)
        self.image = Image.open(io.BytesIO(self.picture)).convert("RGB")
        features = self.preprocess()
        self.pixels, self.grid = features["pixel_values"], features["image_grid_thw"]
        self.seen = self.see()

    def preprocess(self) -> dict[str, Tensor]:
        """The stock processor's patches and grid."""
        return dict(self.processor(images=[self.image], return_tensors="pt"))

    def see(self) -> Any:
        """The tower's tokens and deepstack levels."""
        return self.model.get_image_features(self.pixels, self.grid, return_dict=True)

    def ids(self, pictures: int, text: str) -> Tensor:
        """Token ids ``(1, s)`` of a chat with so many pictures, placeholders expanded."""
        content = [*([{"type": "image"}] * pictures), {"type": "text", "text": text}]
        messages = [{"role": "user", "content": content}]
        prompt = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = prompt.replace("<|image_pad|>", "<|image_pad|>" * (int(self.grid.prod()) // 4))
        ids: Tensor = self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        return ids

    def prefill(self, ids: Tensor) -> tuple[Any, Tensor]:
        """The cache after a prompt, and the next token ``(1, 1)``."""
        inner, cache = self.model.model, DynamicCache(config=self.model.config.get_text_config())
        embeds = inner.get_input_embeddings()(ids)
        mask = ids == self.model.config.image_token_id
        extra: dict[str, Any] = {}
        positions = torch.arange(ids.shape[1]).expand(3, 1, -1)
        if mask.any():
            positions, _ = inner.get_rope_index(ids, mm_token_type_ids=mask.int(), image_grid_thw=self.grid)
            embeds = embeds.masked_scatter(mask[..., None], torch.cat(tuple(self.seen.pooler_output)))
            levels = [torch.cat(tuple(level)) for level in self.seen.deepstack_features]
            extra = {"visual_pos_masks": mask, "deepstack_visual_embeds": levels}
        return cache, self._next(embeds, positions, cache, extra)

    def decode(self, cache: Any, token: Tensor) -> list[float]:
        """Seconds of each of the steps after the first token. ``token`` is ``(b, 1)``; the cache grows."""
        seconds = []
        # After a picture M-RoPE's positions are smaller than these; the time is the same.
        for position in range(cache.get_seq_length(), cache.get_seq_length() + NEW_TOKENS - 1):
            began = time.perf_counter()
            embeds = self.model.model.get_input_embeddings()(token)
            token = self._next(embeds, torch.full((3, len(token), 1), position), cache, {})
            token.tolist()
            seconds.append(time.perf_counter() - began)
        return seconds

    def _next(self, embeds: Tensor, positions: Tensor, cache: Any, extra: dict[str, Any]) -> Tensor:
        decoder = self.model.model.language_model
        hidden = decoder(inputs_embeds=embeds, position_ids=positions, cache=cache, use_cache=True, **extra).last_hidden_state
        return torch.as_tensor(self.model.lm_head(hidden[:, -1:]).argmax(-1))


def decode_time(model: Undivided, ids: Tensor, batch: int, runs: int) -> float:
    """Median seconds of one decoding step with ``batch`` copies of a prompt."""
    seconds: list[float] = []
    for run in range(runs + 1):
        cache, token = model.prefill(ids)
        cache.batch_repeat_interleave(batch)
        steps = model.decode(cache, token.repeat(batch, 1))
        seconds += steps if run else []
    return statistics.median(seconds)


@torch.inference_mode()
def measure(name: str, threads: int, runs: int) -> Floor:
    """The floor of checkpoint ``name`` with so many torch threads; ``runs`` times each."""
    torch.set_num_threads(threads)
    model = Undivided(ensure(name))
    text = words(random.Random(0), TEXT_TOKENS)
    with_picture, text_only = model.ids(1, text), model.ids(0, text)
    return Floor(
        model=name,
        threads=threads,
        jpeg=median_time(lambda: Image.open(io.BytesIO(model.picture)).convert("RGB"), runs),
        preprocess=median_time(model.preprocess, runs),
        tower=median_time(model.see, runs),
        prefill=median_time(lambda: model.prefill(with_picture), runs),
        decode=decode_time(model, with_picture, 1, max(1, runs // 5)),
        decode_batch=decode_time(model, with_picture, BATCH, max(1, runs // 10)),
        text_prefill=median_time(lambda: model.prefill(text_only), runs),
        text_decode=decode_time(model, text_only, 1, max(1, runs // 5)),
        text_decode_batch=decode_time(model, text_only, BATCH, max(1, runs // 10)),
    )


def show(floor: Floor) -> str:
    """The floor for people."""

    def ms(seconds: float) -> str:
        return f"{1e3 * seconds:.1f} ms"

    return (
        f"{floor.model}, {floor.threads} thread(s): JPEG {ms(floor.jpeg)}; preprocess {ms(floor.preprocess)} + tower "
        f"{ms(floor.tower)} + prefill {ms(floor.prefill)} = TTFT {ms(floor.ttft)}; a token {ms(floor.decode)} (batch 1), "
        f"{ms(floor.decode_batch)} (batch {BATCH}: {floor.batch_rate:.0f} tokens/s); text only: prefill "
        f"{ms(floor.text_prefill)}, a token {ms(floor.text_decode)} (batch 1), {ms(floor.text_decode_batch)} "
        f"(batch {BATCH}: {floor.text_batch_rate:.0f} tokens/s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SIZES), default="tiny")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="torch threads; several are measured in turn")
    parser.add_argument("--runs", type=int, default=20, help="calls of each module")
    parser.add_argument("--json", type=Path, help="file for the floors as JSON")
    args = parser.parse_args()
    floors = [measure(args.model, threads, args.runs) for threads in args.threads]
    for floor in floors:
        print(show(floor))
    if args.json:
        args.json.write_text(json.dumps([asdict(floor) for floor in floors]))


if __name__ == "__main__":
    main()
