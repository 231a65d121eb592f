"""Several answers to one request, as one stream of pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

from services.language.completion import Completion, Piece


class Merged(Protocol):
    """Pieces of several completions as they come; closing it cancels them all."""

    def __aiter__(self) -> Merged: ...
    async def __anext__(self) -> tuple[int, Piece]: ...
    async def aclose(self) -> None: ...


async def _numbered(index: int, completion: Completion) -> AsyncIterator[tuple[int, Piece]]:
    async with aclosing(completion.pieces()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            yield index, piece


def merge(completions: Sequence[Completion]) -> Merged:
    """The pieces of all completions, each with its index, in the order in which they come."""
    streams: Any = [_numbered(index, completion) for index, completion in enumerate(completions)]
    merged: Any = streams[0] if len(streams) == 1 else _merged(streams)
    return cast(Merged, merged)


async def _merged(streams: list[Any]) -> AsyncIterator[tuple[int, Piece]]:
    waiting = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                stream = waiting.pop(future)
                try:
                    yield future.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(stream))] = stream
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
