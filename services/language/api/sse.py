"""Server-sent events: framing, the end of a stream, and signs of life while it is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Message, Send

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
"""What clients skip, and what keeps connections open on the way."""


def event(payload: BaseModel, exclude: set[str] | None = None) -> bytes:
    """One ``data:`` event; ``exclude`` names top-level fields to leave out."""
    return f"data: {payload.model_dump_json(exclude=exclude)}\n\n".encode()


class EventStream(StreamingResponse):
    """Streams events, and a comment wherever none came for ``keepalive`` seconds."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], keepalive: float) -> None:
        # Proxies (nginx, by the last header) would hold events back.
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._keepalive = keepalive

    async def stream_response(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        last, ending = loop.time(), False

        async def noting(message: Message) -> None:
            nonlocal last, ending
            last = loop.time()
            ending = ending or (message["type"] == "http.response.body" and not message.get("more_body"))
            await send(message)

        async def keep() -> None:
            while not ending:
                left = last + self._keepalive - loop.time()
                if left > 0:
                    await asyncio.sleep(left)
                else:
                    await noting({"type": "http.response.body", "body": COMMENT, "more_body": True})

        keeper = asyncio.create_task(keep())
        try:
            await super().stream_response(noting)
        finally:
            keeper.cancel()
