"""The end of an attempt: items that still come are waited for, and nothing is verified for those who have left."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from services.language.embeddings.assembly import Assembler
from services.language.embeddings.attempt import Attempts
from services.language.embeddings.dispatch import Dispatcher
from services.language.embeddings.receiver import Holding, Receiver, Wait
from shared.errors import EmbeddingIncomplete, EncoderLost
from shared.identity import MediaItem
from shared.telemetry import Metrics
from shared.wire import Header, pack
from tests.unit.transport.test_carriers import header

GRACE = 0.15


def attempts() -> Attempts:
    return Attempts(cast(Dispatcher, None), cast(Receiver, None), GRACE)


async def test_items_that_keep_coming_after_the_answer_are_waited_for() -> None:
    wait = Wait(range(4), Holding())
    ending = asyncio.create_task(attempts()._stragglers(wait, 4))
    for index in range(4):
        await asyncio.sleep(0.6 * GRACE)
        assert not ending.done()
        wait.came(index)
    await asyncio.wait_for(ending, 5)


async def test_silence_after_the_answer_is_not() -> None:
    wait = Wait(range(4), Holding())
    wait.came(2)
    with pytest.raises(EmbeddingIncomplete, match="3 of 4"):
        await asyncio.wait_for(attempts()._stragglers(wait, 4), 5)


async def test_a_failure_meanwhile_ends_the_waiting() -> None:
    wait = Wait(range(2), Holding())
    ending = asyncio.create_task(attempts()._stragglers(wait, 2))
    await asyncio.sleep(0)
    wait.fail(EncoderLost("gone"))
    await asyncio.wait_for(ending, GRACE)


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def assemble(self, header: Header, frames: Any) -> MediaItem:
        self.calls += 1
        return MediaItem("image", 1)


async def test_nothing_is_verified_for_a_request_that_is_gone() -> None:
    assembler = Counting()
    async with Receiver(cast(Assembler, assembler), "127.0.0.1", 0, 2**20, 2**20, Metrics()) as receiver:
        message = [memoryview(frame) for frame in pack(header(), {})]
        with receiver.holding() as holding, receiver.expect("r", 0, [0], holding):
            assert isinstance(receiver.read(message).result, MediaItem)
        assert receiver.read(message).result is None
        assert assembler.calls == 1
