"""Chat requests for tests, and what the undivided model answers to them."""

from __future__ import annotations

import base64
import hashlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from PIL import Image
from transformers import AutoModelForMultimodalLM

from examples.scenes import Exam, png
from tests.families.processors import processor_of

MODEL = "demo_model"


@dataclass(frozen=True, slots=True)
class Sound:
    """The bytes of a WAV file."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Film:
    """The bytes of an MP4 file."""

    data: bytes


Part: TypeAlias = bytes | str | Sound | Film
"""One part of a message; bytes are a picture's file."""


def data_url(picture: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(picture).decode()}"


def encoded(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=file_format, **options)
    return buffer.getvalue()


def user(*parts: Part, **request: Any) -> dict[str, Any]:
    """A request with one user message: bytes are pictures, strings are text."""
    content = [_for_the_api(part) for part in parts]
    return {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": content}], **request}


def _for_the_api(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Sound):
        return {"type": "input_audio", "input_audio": {"data": base64.b64encode(part.data).decode(), "format": "wav"}}
    if isinstance(part, Film):
        return {"type": "video_url", "video_url": {"url": data_url(part.data, "video/mp4")}}
    return {"type": "image_url", "image_url": {"url": data_url(part)}}


def exam_parts(exam: Exam, seed: int) -> list[bytes | str]:
    """The message's parts for an exam: its pictures are drawn by ``seed``."""
    return [
        part if isinstance(part, str) else png(exam.scenes[part], size=(96, 224, 512)[seed % 3], seed=seed + part)
        for part in exam.layout
    ]


class Undivided:
    """The whole transformers model in one process: what the pair must equal, token for token."""

    def __init__(self, folder: Path) -> None:
        self.processor = processor_of(folder)
        self.tokenizer = self.processor.tokenizer
        self.model = AutoModelForMultimodalLM.from_pretrained(folder).eval()
        self._films = tempfile.TemporaryDirectory()

    @torch.inference_mode()
    def answer(self, parts: Sequence[Part], max_tokens: int = 64) -> tuple[list[int], list[int]]:
        """Token ids of the expanded prompt and of the greedy answer."""
        content = [self._for_transformers(part) for part in parts]
        inputs = self.processor.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        out = self.model.generate(**inputs, do_sample=False, max_new_tokens=max_tokens)
        ids = inputs["input_ids"]
        return ids[0].tolist(), out[0, ids.shape[1] :].tolist()

    def _for_transformers(self, part: Part) -> dict[str, Any]:
        """The content part as transformers' users write it. Videos are read from files."""
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if isinstance(part, Sound):
            return {"type": "audio", "audio": data_url(part.data, "audio/wav")}
        if isinstance(part, Film):
            path = Path(self._films.name) / f"{hashlib.sha256(part.data).hexdigest()}.mp4"
            path.write_bytes(part.data)
            return {"type": "video", "video": str(path)}
        return {"type": "image", "image": Image.open(io.BytesIO(part))}
