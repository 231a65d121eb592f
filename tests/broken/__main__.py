"""``python -m tests.broken …``: the language service with the wrong behaviour that ``BROKEN_BY`` names.

It is what the load tester is tried out on: each breaks one promise of the failure contract, and keeps the others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from services.encoder.decode import decode_image
from services.encoder.models.generic import EncoderHalf, open_half
from services.language.__main__ import main
from services.language.chat import ChatService
from services.language.completion import Completion
from services.language.embeddings.gather import Gatherer
from services.language.embeddings.job import Job
from services.language.prompt.conversation import MediaSource
from services.language.request import ChatRequest
from shared.errors import EpdError, Unavailable
from shared.identity import MediaItem


@cache
def vision() -> EncoderHalf:
    """What a language service must not have."""
    return open_half(Path(os.environ["EPD_MODEL"]), "cpu")


def compute(source: MediaSource) -> MediaItem:
    """A picture's embeddings, made here."""
    assert source.data is not None
    item = vision().preprocess(decode_image(source.data, 10**8))
    vision().encode([item])
    item.features = {}
    item.set_hash(f"{source.index:032x}" if source.digest is None else source.digest)
    return item


def answer_silently() -> None:
    """When embeddings do not come, they are computed here, and nobody is told."""
    gather = Gatherer.gather

    async def instead(
        self: Gatherer, request_id: str, media: Sequence[MediaSource], budget: int, *rest: Any, **named: Any
    ) -> list[MediaItem]:
        try:
            return await gather(self, request_id, media, budget, *rest, **named)
        except Unavailable:
            return await asyncio.to_thread(lambda: [compute(source) for source in media])

    Gatherer.gather = instead  # type: ignore[method-assign]
    Gatherer.check = lambda self, items: None  # type: ignore[method-assign]


def drop_requests() -> None:
    """One of forty requests is forgotten: no error, no retry, no timeout."""
    start, numbers = ChatService.start, count(1)

    async def instead(self: ChatService, request: ChatRequest) -> list[Completion]:
        if next(numbers) % 40 == 0:
            await asyncio.Event().wait()
        return await start(self, request)

    ChatService.start = instead  # type: ignore[method-assign]


def mix_up() -> None:
    """One of ten pictures is another request's that came before it."""
    arrived, numbers, last = Job.arrived, count(1), list[MediaItem]()

    def instead(self: Job, index: int, item: MediaItem) -> None:
        if next(numbers) % 10 == 0 and last and last[-1].num_tokens == item.num_tokens:
            other = last[-1].again()
            last[:] = [item]
            return arrived(self, index, other)
        last[:] = [item]
        return arrived(self, index, item)

    Job.arrived = instead  # type: ignore[method-assign]


def never_say_when() -> None:
    """503s that do not say when to come back."""
    EpdError.__init__ = _without_retry_after(EpdError.__init__)  # type: ignore[method-assign]


def _without_retry_after(init: Callable[..., None]) -> Callable[..., None]:
    def instead(self: EpdError, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.retry_after = None

    return instead


def hold_up_texts() -> None:
    """Texts wait for the encoders, too."""
    start = ChatService.start

    async def instead(self: ChatService, request: ChatRequest) -> list[Completion]:
        if not request.conversation.media and not self._gatherer._failover._pool.ready():
            await asyncio.sleep(0.5)
        return await start(self, request)

    ChatService.start = instead  # type: ignore[method-assign]


BREAKS: Mapping[str, Callable[[], None]] = {
    "silent": answer_silently,
    "dropped": drop_requests,
    "mixed": mix_up,
    "terse": never_say_when,
    "waiting": hold_up_texts,
}

if __name__ == "__main__":
    BREAKS[os.environ["BROKEN_BY"]]()
    main()
