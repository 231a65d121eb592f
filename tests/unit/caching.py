"""Pictures that come again, calls that are answered, and what the encoder's caches made of them."""

from __future__ import annotations

import asyncio
from typing import Any

from PIL import Image

from services.encoder.faults.base import Call, Outgoing, Sender, Stage
from services.encoder.faults.registry import Faults
from shared.control import EncodeItem, EncodeResponse
from shared.tracing import Span, Tracer, Value
from shared.wire import Header, Message, read_header, read_tensors
from tests.chats import encoded
from tests.unit.test_pipeline import Bench

TENANT = f"tenant:{0:032x}"
# What the embeddings of a picture take that is 8 wide, as the cache counts them.
ENTRY_BYTES = 8 * 2 * 4 + 1024


def other_bytes(size: int = 8) -> bytes:
    """The same pixels as those of ``picture(size)``, in another format."""
    return encoded(Image.new("RGB", (size, size), "red"), "BMP")


def lookups(b: Bench, level: str) -> dict[str, float]:
    """How many items had which luck."""
    counts = {
        outcome: b.metric("epd_encoder_cache_lookups_total", level=level, outcome=outcome)
        for outcome in ("hit", "miss", "joined")
    }
    return {outcome: count for outcome, count in counts.items() if count}


def computed(b: Bench) -> list[int]:
    """The items that the tower computed, in order."""
    return [tokens for batch in b.model.batches for tokens in batch]


async def message(b: Bench) -> Message:
    """The next one that arrives."""
    async with asyncio.timeout(5):
        head, *frames = await b.socket.recv_multipart()
    header = read_header(head)
    assert isinstance(header, Header)
    return read_tensors(header, frames)


async def done(call: asyncio.Task[EncodeResponse]) -> EncodeResponse:
    return await asyncio.wait_for(call, 5)


async def answered(b: Bench, *media: bytes | str, **request: Any) -> EncodeResponse:
    """The answer to a call whose messages arrive and are about its own pictures."""
    answer = await done(b.call(*media, **request))
    for item in answer.items:
        came = await message(b)
        assert came.header.content_hash in {each.content_hash for each in answer.items}
        assert bool((came.tensors["embeds"] == came.header.num_tokens).all())
        assert item.num_tokens
    return answer


class Seen(Span):
    def __init__(self, name: str) -> None:
        self.name = name
        self.attributes: dict[str, Value] = {}

    def set(self, **attributes: Value) -> None:
        self.attributes |= attributes


class Notebook(Tracer):
    """Notes the spans that begin."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []

    def span(self, name: str, **_: Any) -> Span:
        self.spans.append(Seen(name))
        return self.spans[-1]

    def spared(self) -> list[tuple[str, Value]]:
        """Spans so far by how they were spared, and forgets them."""
        spans, self.spans = self.spans, []
        return [(span.name, span.attributes.get("cache")) for span in spans]


class Recorder(Faults):
    """Notes the stages that items pass, and what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[Stage] = []
        self.sent: list[Outgoing] = []

    async def at(self, stage: Stage, call: Call, item: EncodeItem | None = None) -> None:
        self.passed.append(stage)

    def sender(self, call: Call, send: Sender) -> Sender:
        async def noted(outgoing: Outgoing) -> None:
            self.sent.append(outgoing)
            await send(outgoing)

        return noted
