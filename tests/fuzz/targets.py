"""What must hold whatever comes: of the functions that read a message, and of the receiver with requests that wait."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from services.language.embeddings.assembly import Assembler
from services.language.embeddings.memory import OpenMemory
from services.language.embeddings.receiver import Receiver
from services.language.models.facts import LanguageFacts
from services.language.prompt.expansion import expand
from shared.errors import EmbeddingCorrupt, EmbeddingIncompatible, EpdError, InternalError
from shared.identity import MediaItem, pad_ids_of
from shared.layout import Layout
from shared.leases import Ledger
from shared.memory import Segment
from shared.residency import Residency
from shared.settings import DEMO_MODEL
from shared.telemetry import Metrics
from shared.wire import DTYPES, Header, Heartbeat, SharedMemory, pack, read_header, read_tensors
from tests.fuzz.mutations import Frames, with_digest

FINGERPRINT = "5f" * 16
REQUEST, ATTEMPT, OTHER = "request/1", 1, "request/2"
MAX_SECONDS = 2.0  # for one message; the machine may be busy with other things

Verdict = str
"""What became of a message: ``ok``, or why not."""


def header(**changes: object) -> Header:
    """The header of a good message."""
    fields: dict[str, object] = {
        "request_id": REQUEST,
        "attempt": ATTEMPT,
        "item": 0,
        "num_items": 2,
        "modality": "image",
        "content_hash": "0a" * 16,
        "num_tokens": 6,
        "grid_thw": (1, 4, 6),
        "model_fingerprint": FINGERPRINT,
        "encoder_id": "encoder-1",
        "timings": {"decode": 0.25, "tower": 1.5},
    }
    return Header.model_validate(fields | changes)


class Samples:
    """Good messages of every kind, for one model."""

    def __init__(self, facts: LanguageFacts) -> None:
        self._shapes = facts.half.tensor_shapes(6)
        layout = Layout(((7, 2), (facts.half.placeholders["image"], 6), (8, 1)), "before", "after")
        failure = {"code": "invalid_media", "message": "This is no picture."}
        beat = Heartbeat(encoder_id="encoder-1", state="ready", items_in_work=1, max_items=8)  # type: ignore[arg-type]
        self.all: list[Frames] = [
            self.item(0),
            self.item(1, dtype=torch.bfloat16),
            self.item(0, request_id=OTHER, attempt=0, num_items=1),
            [bytes(frame) for frame in pack(header(failure=failure, num_tokens=0, grid_thw=None), {})],
            self.item(1, layout=layout),
            [beat.model_dump_json().encode()],
        ]

    def item(self, index: int, dtype: torch.dtype = torch.float32, **changes: object) -> Frames:
        """An item as frames."""
        return [bytes(frame) for frame in pack(header(item=index, **changes), self.tensors(index, dtype))]

    def tensors(self, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in self._shapes.items()}


def check_reading(frames: Sequence[bytes], original: Sequence[bytes]) -> Verdict:
    """``read_header`` and ``read_tensors`` raise what they say and nothing else, and give what is in the message."""
    try:
        read = read_header(frames[0])
        if isinstance(read, Heartbeat):
            return "heartbeat"
        message = read_tensors(read, frames[1:])
    except (EmbeddingCorrupt, EmbeddingIncompatible) as error:
        return error.code
    _check_header(read, frames, original)
    _check_tensors(message.tensors, read, frames[1:])
    return "ok"


def _check_header(read: Header, frames: Sequence[bytes], original: Sequence[bytes]) -> None:
    """Nothing passes that was not sent: the message is the original one, or whoever changed it also made it a digest."""
    spelled = json.loads(frames[0])
    for name in ("version", "request_id", "attempt", "item", "num_items", "content_hash", "num_tokens", "model_fingerprint"):
        assert getattr(read, name) == spelled[name], name
        assert type(getattr(read, name)) is type(spelled[name]), name
    assert read.digest == spelled["digest"]
    if read.digest.encode() in original[0]:
        assert list(frames) == list(original)
    else:
        assert read.digest.encode() in with_digest(list(frames))[0]
    assert all(math.isfinite(seconds) for seconds in read.timings.values())


def _check_tensors(tensors: dict[str, Tensor], read: Header, parts: Sequence[Any]) -> None:
    assert list(tensors) == [spec.name for spec in read.tensors]
    for spec, part, tensor in zip(read.tensors, parts, tensors.values(), strict=True):
        assert tuple(tensor.shape) == spec.shape
        assert tensor.dtype == DTYPES[spec.dtype]
        assert tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() == bytes(part)


@dataclass
class Lent:
    """Memory as an encoder shares it, with a good item in it, for one message after another."""

    samples: Samples
    segment: Segment = field(default_factory=lambda: Segment("epd-encoder-1-1", 2**16 + 4))
    ledger: Ledger = field(default_factory=lambda: Ledger("epd-encoder-1-ledger", 64))

    def message(self) -> tuple[Frames, Callable[[], None]]:
        """A message, and what ends its lease."""
        tensors = self.samples.tensors(7)
        offsets, at = [], 0
        for tensor in tensors.values():
            raw = tensor.view(torch.uint8).numpy().tobytes()
            self.segment.buffer[at : at + len(raw)] = raw
            offsets.append(at)
            at += len(raw)
        lease = self.ledger.lend()
        assert lease is not None
        place = SharedMemory(segment=self.segment.memory, offsets=tuple(offsets), lease=lease)
        frames = [bytes(frame) for frame in pack(header(place=place), tensors)]
        return frames, lambda: self.ledger.end(lease)


class ReceiverTarget:
    """A receiver, two requests that wait for items of the demo model, and messages that come for them."""

    def __init__(self) -> None:
        self._facts = LanguageFacts(Path(DEMO_MODEL), "cpu", "float32")
        self.samples = Samples(self._facts)
        self.lent = Lent(self.samples)
        self._good = {
            (REQUEST, 0): self.samples.item(0),
            (REQUEST, 1): self.samples.item(1),
            (OTHER, 0): self.samples.item(0, request_id=OTHER, attempt=0),
        }
        self._loop = asyncio.new_event_loop()
        self._memory = OpenMemory(Residency("shm"), "language-1", 2**24)
        self._receiver = self._loop.run_until_complete(self._make())
        self.slowest = 0.0

    async def _make(self) -> Receiver:
        assembler = Assembler(self._facts.half, self._facts.dtype, FINGERPRINT)
        return await Receiver(assembler, "127.0.0.1", 0, 2**20, 2**20, Metrics(), self._memory).__aenter__()

    def close(self) -> None:
        self._memory.close()
        self._loop.run_until_complete(self._receiver.__aexit__())
        self._loop.close()

    def check(self, frames: Sequence[bytes], original: Sequence[bytes]) -> Verdict:
        """Gives the receiver a message; whatever it is, good ones get through after it, and nothing is held in the end."""
        verdict = self._loop.run_until_complete(self._check(frames, original))
        assert self._receiver._held_bytes == 0
        assert not self._receiver._waits
        return verdict

    async def _check(self, frames: Sequence[bytes], original: Sequence[bytes]) -> Verdict:
        receiver, got = self._receiver, dict[tuple[str, int], MediaItem]()

        def arrived(request_id: str) -> Callable[[int, MediaItem], None]:
            return lambda index, item: got.update({(request_id, index): item})

        with (
            receiver.holding() as holding,
            receiver.expect(REQUEST, ATTEMPT, (0, 1), holding, arrived(REQUEST)) as first,
            receiver.expect(OTHER, 0, (0,), holding, arrived(OTHER)) as second,
        ):
            began = time.perf_counter()
            await self._give(frames)
            took = time.perf_counter() - began
            self.slowest = max(self.slowest, took)
            assert took < MAX_SECONDS
            ends = [wait.done.exception() for wait in (first, second) if wait.done.done()]
            errors = [error for error in ends if error is not None]
            assert all(isinstance(error, EpdError) and not isinstance(error, InternalError) for error in errors), errors
            assert len(got) + len(errors) <= 1
            for (request_id, index), item in got.items():
                self._check_item(request_id, index, item, frames, original)
            verdict = "ok" if got else cast(EpdError, errors[0]).code if errors else "dropped"
            # It takes nobody's place but the one's that it says it is for: whoever else waits gets what comes next.
            taken = 0
            for (request_id, index), good in self._good.items():
                if index in (first if request_id == REQUEST else second).missing:
                    await self._give(good)
                    assert (request_id, index) in got
                else:
                    taken += 1
            assert taken <= 1
            assert taken or verdict in ("dropped", "embedding_incompatible")  # the latter where the version is another
        got.clear()
        return verdict

    def _check_item(
        self, request_id: str, index: int, item: MediaItem, frames: Sequence[bytes], original: Sequence[bytes]
    ) -> None:
        """What was accepted is what the message says, whose it says, and as the model needs it."""
        read = read_header(frames[0])
        assert isinstance(read, Header)
        _check_header(read, frames, original)
        assert (read.request_id, read.item, read.model_fingerprint) == (request_id, index, FINGERPRINT)
        assert (item.modality, item.num_tokens, item.grid_thw) == (read.modality, read.num_tokens, read.grid_thw)
        assert (item.content_hash, item.pad_ids) == (read.content_hash, pad_ids_of(read.content_hash))
        assert read.grid_thw is not None
        assert item.num_tokens == math.prod(read.grid_thw) // 4 > 0
        half = self._facts.half
        ids, spans = expand([half.placeholders[item.modality]], [item], half.placeholders, half.media_ids)
        assert max(ids) < self._facts.vocab_size
        assert half.positions(ids, spans).ids.shape == (3, len(ids))
        assert sum(span.tokens for span in spans) == item.num_tokens
        wanted = half.tensor_shapes(item.num_tokens)
        tensors = dict(zip(wanted, (item.embeds, *item.deepstack), strict=True))
        parts = {spec.name: part for spec, part in zip(read.tensors, self._parts(read, frames), strict=True)}
        assert parts.keys() == wanted.keys()
        for spec in read.tensors:
            tensor = tensors[spec.name]
            assert tensor is not None
            sent = torch.frombuffer(bytearray(parts[spec.name]), dtype=DTYPES[spec.dtype]).view(wanted[spec.name])
            assert torch.equal(tensor, sent.float())
            assert bool(torch.isfinite(tensor).all())

    def _parts(self, read: Header, frames: Sequence[bytes]) -> list[bytes]:
        if read.place is None:
            return list(frames[1:])
        assert isinstance(read.place, SharedMemory)
        assert read.place.segment.name == self.lent.segment.memory.name
        sizes = [math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in read.tensors]
        return [self.lent.segment.buffer[at : at + size] for at, size in zip(read.place.offsets, sizes, strict=True)]

    async def _give(self, frames: Sequence[bytes]) -> None:
        self._receiver.give(self._receiver.read([memoryview(frame) for frame in frames]))
