"""Request bodies for a load, made before its clock starts: every picture and every text is another one, and seeded."""

from __future__ import annotations

import base64
import io
import json
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image

# Each is one token with a space before it, in the benchmark's tokenizer and in those of the usual model families.
_LIST = """
red blue green yellow black orange purple circle square triangle cross picture pictures objects shapes left right top bottom
first second third two three many small simple model answer count name about this that there you know yes helpful welcome
"""
WORDS = _LIST.split()


@dataclass(frozen=True, slots=True)
class Prompts:
    """What each request of a load asks.

    ``text_tokens`` words are its own; before them come ``shared_tokens`` words that all requests of one ``seed`` share.
    ``standard`` leaves out the fields that OpenAI's API does not have, for servers that refuse unknown ones.
    """

    pictures: int = 0
    side: int = 512  # pixels
    text_tokens: int = 16
    shared_tokens: int = 0
    max_tokens: int = 32
    seed: int = 0
    standard: bool = False


def words(rng: random.Random, count: int) -> str:
    """Text of about ``count`` tokens."""
    return "".join(f" {rng.choice(WORDS)}" for _ in range(count))


def jpeg(seed: int, side: int) -> bytes:
    """A picture with the detail of a photo: smooth colours, edges and a little grain; about 40 kB at 512x512."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    blocks = Image.fromarray(rng.integers(0, 2, (16, 16), dtype=np.uint8) * 60).resize((side, side), Image.Resampling.NEAREST)
    grain = rng.normal(0, 5, (side, side, 1))
    pixels = np.asarray(coarse, dtype=np.float64) * 0.75 + np.asarray(blocks, dtype=np.float64)[..., None] + grain
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, format="JPEG", quality=85)
    return buffer.getvalue()


def body(prompts: Prompts, model: str, number: int) -> bytes:
    """The JSON body of request ``number``."""
    picture_seeds = (random.Random(f"{prompts.seed}/{number}/{at}").getrandbits(63) for at in range(prompts.pictures))
    urls = (f"data:image/jpeg;base64,{base64.b64encode(jpeg(seed, prompts.side)).decode()}" for seed in picture_seeds)
    shared = words(random.Random(f"shared/{prompts.seed}"), prompts.shared_tokens)
    text = shared + words(random.Random(f"own/{prompts.seed}/{number}"), prompts.text_tokens)
    content = [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": text}]
    request = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": prompts.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if not prompts.standard:
        request["ignore_eos"] = True
    return json.dumps(request).encode()


def bodies(prompts: Prompts, model: str, count: int) -> list[bytes]:
    """The bodies of ``count`` requests, all different."""
    return [body(prompts, model, number) for number in range(count)]
