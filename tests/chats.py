"""Chat requests for tests, and what the undivided model answers to them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, Qwen3VLForConditionalGeneration

from examples.scenes import Exam, png

MODEL = "demo_model"


def data_url(picture: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(picture).decode()}"


def encoded(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=file_format, **options)
    return buffer.getvalue()


def user(*parts: bytes | str, **request: Any) -> dict[str, Any]:
    """A request with one user message: bytes are pictures, strings are text."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    return {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": content}], **request}


def exam_parts(exam: Exam, seed: int) -> list[bytes | str]:
    """The message's parts for an exam: its pictures are drawn by ``seed``."""
    return [
        part if isinstance(part, str) else png(exam.scenes[part], size=(96, 224, 512)[seed % 3], seed=seed + part)
        for part in exam.layout
    ]


class Undivided:
    """The whole transformers model in one process: what the pair must equal, token for token."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = AutoImageProcessor.from_pretrained(folder)
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(folder).eval()

    @torch.inference_mode()
    def answer(self, parts: Sequence[bytes | str], max_tokens: int = 64) -> tuple[list[int], list[int]]:
        """Token ids of the expanded prompt and of the greedy answer."""
        content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        pictures = [Image.open(io.BytesIO(part)) for part in parts if isinstance(part, bytes)]
        inputs: dict[str, Any] = {}
        if pictures:
            inputs = dict(self.processor(images=pictures, return_tensors="pt"))
            for grid in inputs["image_grid_thw"].tolist():
                text = text.replace("<|image_pad|>", "<|place|>" * (grid[1] * grid[2] // 4), 1)
            text = text.replace("<|place|>", "<|image_pad|>")
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        if pictures:
            inputs["mm_token_type_ids"] = (ids == self.model.config.image_token_id).int()
        out = self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, **inputs
        )
        return ids[0].tolist(), out[0, ids.shape[1] :].tolist()
