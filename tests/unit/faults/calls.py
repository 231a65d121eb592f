"""Calls and messages without an encoder around them, and a connection that notes what it is given."""

from __future__ import annotations

import asyncio

import pytest
import torch

from services.encoder.faults.base import Call, Fault, Outgoing, Stage
from services.encoder.faults.registry import Faults
from shared.control import EncodeItem, EncodeRequest
from shared.identity import Modality
from shared.wire import Buffer, Header, pack

TOKENS, WIDTH = 4, 8


def call(items: int = 1, modality: Modality = "image", **headers: str) -> Call:
    """A call with headers; ``x_request_id`` stands for ``x-request-id``."""
    request = EncodeRequest(
        request_id="r/1",
        num_items=items,
        items=tuple(EncodeItem(index=index, modality=modality, url="http://pictures/1.png") for index in range(items)),
        reply_to="tcp://127.0.0.1:1",
        timeout=10.0,
    )
    return Call(request, {name.replace("_", "-"): value for name, value in headers.items()})


def message(item: int = 0, modality: Modality = "image") -> Outgoing:
    """An item's message; all elements of its tensors are ``item + 1``."""
    header = Header(
        request_id="r/1",
        attempt=0,
        item=item,
        num_items=1,
        modality=modality,
        content_hash="00" * 16,
        num_tokens=TOKENS,
        grid_thw=(1, 4, 4),
        model_fingerprint="f",
        encoder_id="e",
    )
    tensors = {name: torch.full((TOKENS, WIDTH), item + 1.0) for name in ("embeds", "deepstack.0")}
    return Outgoing(header, tensors)


class Connection:
    """The sender beneath all faults."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.frames: list[list[Buffer]] = []

    async def __call__(self, outgoing: Outgoing) -> None:
        frames = pack(outgoing.header, outgoing.tensors)
        for mangle in outgoing.manglers:
            frames = mangle(frames)
        self.sent.append(outgoing)
        self.frames.append(frames)

    @property
    def items(self) -> list[int]:
        """The items whose messages went out, in order."""
        return [outgoing.header.item for outgoing in self.sent]


def setting(*faults: Fault) -> Faults:
    """These faults, set in this order."""
    registry = Faults()
    registry.add(faults)
    return registry


async def sent_by(faults: Faults, one: Call) -> Connection:
    """What goes out for a call whose items are all encoded, in order, one after another."""
    connection = Connection()
    send = faults.sender(one, connection)
    for item in one.request.items:
        await send(message(item.index, item.modality))
    return connection


async def passes(faults: Faults, stage: Stage, one: Call) -> None:
    """A call, or where the stage is an item's its first item, passes a stage."""
    await faults.at(stage, one, None if stage is Stage.ADMIT else one.request.items[0])


async def settled() -> None:
    """Everything that can go on without time passing has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


def clocked(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Makes no fault wait; the times that they would have waited for go into the list."""
    waits: list[float | None] = []

    async def pause(_: Fault, seconds: float | None) -> None:
        waits.append(seconds)

    monkeypatch.setattr(Fault, "pause", pause)
    return waits
