"""Faults in what a message says. Each rolls once a message, and works on copies: tensors and frames are the encoder's own."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from services.encoder.faults.base import Call, Fault, Outgoing, Sender
from shared.wire import Buffer

_DTYPE = re.compile(rb'(?<="dtype":")\w+(?=")')


class ContentFault(Fault):
    """A fault that makes another message of one."""

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:
        await onward(self.altered(outgoing) if self.fires(call, outgoing.header) else outgoing)

    def altered(self, outgoing: Outgoing) -> Outgoing:
        """What is sent instead."""
        raise NotImplementedError


class Corrupt(ContentFault):
    """Random bits, ``bits`` of them, are flipped in one frame: ``frame`` (0 is the header), without one any tensor's.

    Nothing is flipped in a message that has no such frame.
    """

    kind: Literal["corrupt"] = "corrupt"
    bits: int = Field(1, ge=1, le=1_000_000)
    frame: int | None = Field(None, ge=0)

    def altered(self, outgoing: Outgoing) -> Outgoing:
        # Frames are mangled in a thread, and copies of a message each on their own: all shall see the same bits.
        seed = self._random.getrandbits(64)
        return replace(outgoing, manglers=[*outgoing.manglers, lambda frames: self._flip(frames, random.Random(seed))])

    def _flip(self, frames: Sequence[Buffer], randomness: random.Random) -> list[Buffer]:
        flipped = list(frames)
        wanted = range(1, len(frames)) if self.frame is None else (self.frame,)
        there = [index for index in wanted if index < len(frames) and len(frames[index])]
        if there:
            index = randomness.choice(there)
            flipped[index] = frame = bytearray(frames[index])
            for bit in randomness.sample(range(8 * len(frame)), min(self.bits, 8 * len(frame))):
                frame[bit // 8] ^= 1 << bit % 8
        return flipped


class WrongShape(ContentFault):
    """Every tensor lacks its last column. The header agrees, so that only the model can tell."""

    kind: Literal["wrong_shape"] = "wrong_shape"

    def altered(self, outgoing: Outgoing) -> Outgoing:
        return replace(outgoing, tensors={name: tensor[..., :-1] for name, tensor in outgoing.tensors.items()})


class WrongTokens(ContentFault):
    """An item has ``delta`` tokens more, or fewer, than it should; never fewer than none.

    Header and tensors agree, so that only the grid can tell: tokens are cut off, or the last one is repeated.
    """

    kind: Literal["wrong_tokens"] = "wrong_tokens"
    delta: int = Field(1, ge=-1_000_000, le=10_000)

    def altered(self, outgoing: Outgoing) -> Outgoing:
        tokens = max(0, outgoing.header.num_tokens + self.delta)
        rows = torch.arange(tokens).clamp(max=outgoing.header.num_tokens - 1)
        return replace(
            outgoing,
            header=outgoing.header.model_copy(update={"num_tokens": tokens}),
            tensors={name: tensor[rows] if len(tensor) else tensor for name, tensor in outgoing.tensors.items()},
        )


class NotFinite(ContentFault):
    """One random element of one random tensor is ``value``."""

    kind: Literal["nan"] = "nan"
    value: Literal["nan", "inf", "-inf"] = "nan"

    def altered(self, outgoing: Outgoing) -> Outgoing:
        names = [name for name, tensor in outgoing.tensors.items() if tensor.numel()]
        if not names:
            return outgoing
        name = self._random.choice(names)
        tensor = outgoing.tensors[name].detach().clone(memory_format=torch.contiguous_format)
        tensor.view(-1)[self._random.randrange(tensor.numel())] = float(self.value)
        return replace(outgoing, tensors={**outgoing.tensors, name: tensor})


class WrongDtype(ContentFault):
    """The header says that all tensors are ``dtype``; the frames stay. Nothing else gets such a dtype past ``pack``."""

    kind: Literal["wrong_dtype"] = "wrong_dtype"
    dtype: str = Field("float64", pattern=r"^\w{1,32}$")

    def altered(self, outgoing: Outgoing) -> Outgoing:
        return replace(outgoing, manglers=[*outgoing.manglers, self._rename])

    def _rename(self, frames: Sequence[Buffer]) -> list[Buffer]:
        # Not parsed: another fault may have left of the header what is no JSON any more.
        return [_DTYPE.sub(self.dtype.encode(), bytes(frames[0])), *frames[1:]]


class WrongFingerprint(ContentFault):
    """The embeddings claim to come from another checkpoint."""

    kind: Literal["wrong_fingerprint"] = "wrong_fingerprint"

    def altered(self, outgoing: Outgoing) -> Outgoing:
        other = f"not-{outgoing.header.model_fingerprint}"
        return replace(outgoing, header=outgoing.header.model_copy(update={"model_fingerprint": other}))
