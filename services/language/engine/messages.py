"""What the language service and an engine's process say to each other: one msgpack frame, then one raw frame a tensor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import msgspec
import torch
from torch import Tensor

from services.language.engine.interface import EngineRequest, Load, Prompt, Sampling, Span, Step
from services.language.engine.options import EngineOptions
from services.language.models.generic import Positions
from shared.identity import Grid, MediaItem, Modality
from shared.wire import DTYPE_NAMES, DTYPES, Buffer, frame_of

Fault = Literal["engine", "grammar", "request"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A sequence ended; the others go on. ``fault`` says by what: a bug or numbers that are not finite, its grammar, or
    something in the request that this engine does not do."""

    message: str
    fault: Fault = "engine"


class Config(msgspec.Struct, frozen=True):
    """What an engine process is started with: where it is expected, and how it runs."""

    endpoint: str
    options: EngineOptions


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process serves. ``capacity`` is in tokens of one sequence."""

    parameters: dict[str, int]
    capacity: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The process cannot serve this model, or not any more, and ends."""

    reason: str


class Outcome(msgspec.Struct, frozen=True):
    """What a step brought for one sequence."""

    number: int
    step: Step | None = None
    failure: Failure | None = None


class Outcomes(msgspec.Struct, frozen=True, tag=True):
    """What a step brought, and how busy the engine is after it."""

    outcomes: list[Outcome]
    load: Load


class Media(msgspec.Struct, frozen=True):
    """An item whose tensors follow as frames: embeddings, then deepstack levels, each ``(num_tokens, hidden)``. ``spans`` are
    its spans' start, offset and tokens."""

    modality: Modality
    spans: list[tuple[int, int, int]]
    num_tokens: int
    grid_thw: Grid | None
    seconds_per_grid: float | None
    content_hash: str
    dtype: str
    levels: int


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A new sequence, which came at ``arrived`` on the machine's monotonic clock. The first frame after it is its positions,
    ``(axes, tokens)`` int64."""

    number: int
    request_id: str
    token_ids: list[int]
    following: int
    sampling: Sampling
    grammar: str | None
    arrived: float
    media: list[Media]


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """The sequence is not wanted any more."""

    number: int


ToEngine = Submit | Cancel
FromEngine = Ready | Refused | Outcomes

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """The first frame of a message."""
    return _encoder.encode(message)


def decode_to_engine(frame: Buffer) -> ToEngine:
    return _to_engine.decode(frame)


def decode_from_engine(frame: Buffer) -> FromEngine:
    return _from_engine.decode(frame)


def submission(number: int, request: EngineRequest) -> list[Buffer]:
    """The frames of a new sequence."""
    prompt = request.prompt
    frames: list[Buffer] = [frame_of(prompt.positions.ids)]
    media = []
    for _, same in groupby(prompt.spans, key=lambda span: id(span.item)):
        spans = list(same)
        item, places = spans[0].item, [(span.start, span.offset, span.tokens) for span in spans]
        assert item.embeds is not None
        dtype, levels = DTYPE_NAMES[item.embeds.dtype], len(item.deepstack)
        facts = item.modality, places, item.num_tokens, item.grid_thw, item.seconds_per_grid
        media.append(Media(*facts, item.content_hash, dtype, levels))
        frames += [frame_of(item.embeds), *(frame_of(level) for level in item.deepstack)]
    head = Submit(
        number,
        request.request_id,
        prompt.token_ids,
        prompt.positions.following,
        request.sampling,
        request.grammar,
        time.monotonic(),
        media,
    )
    return [encode(head), *frames]


def request_of(head: Submit, frames: Sequence[Buffer]) -> EngineRequest:
    """The sequence in a submission; its tensors are views of the frames."""
    waiting = iter(frames)

    def tensor(dtype: torch.dtype, rows: int) -> Tensor:
        return torch.frombuffer(next(waiting), dtype=dtype).view(rows, -1)

    count = len(head.token_ids)
    positions = Positions(torch.frombuffer(next(waiting), dtype=torch.int64).view(-1, count), head.following)
    spans = []
    for media in head.media:
        dtype = DTYPES[media.dtype]
        item = MediaItem(media.modality, media.num_tokens, media.grid_thw, seconds_per_grid=media.seconds_per_grid)
        item.set_hash(media.content_hash)
        item.embeds = tensor(dtype, media.num_tokens)
        item.deepstack = tuple(tensor(dtype, media.num_tokens) for _ in range(media.levels))
        spans += [Span(start, item, offset, tokens) for start, offset, tokens in media.spans]
    prompt = Prompt(head.token_ids, positions, tuple(spans))
    return EngineRequest(head.request_id, prompt, head.sampling, grammar=head.grammar)


def outcomes_of(results: dict[int, Step | Failure], load: Load) -> Outcomes:
    """A step's results as they travel."""
    return Outcomes(
        [
            Outcome(number, failure=result) if isinstance(result, Failure) else Outcome(number, step=result)
            for number, result in results.items()
        ],
        load,
    )
