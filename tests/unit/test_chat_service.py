"""What the service behind the API promises whatever keeps it busy."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from services.language.chat import ChatService
from services.language.deadline import Deadline
from services.language.engine.interface import Sampling
from services.language.models.facts import LanguageFacts
from services.language.prompt.conversation import Conversation
from services.language.request import ChatRequest
from services.language.settings import LanguageSettings
from shared.errors import EngineOverloaded
from shared.identity import ContentHasher
from shared.lifecycle import Drain
from shared.telemetry import Metrics


def service_of(demo_model: Path) -> ChatService:
    nobody: Any = None
    drain = Drain(1.0, lambda: EngineOverloaded("ending"))
    return ChatService(
        LanguageSettings(), LanguageFacts(demo_model), nobody, nobody, drain, ContentHasher(bytes(32)), Metrics()
    )


async def test_grammars_that_take_long_keep_no_text_waiting(demo_model: Path) -> None:
    service, free = service_of(demo_model), threading.Event()
    busy = [asyncio.create_task(service._compilers.run(free.wait)) for _ in range(8)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(5):
            assert await service.detokenize([34], Deadline(5)) == "C"
    finally:
        free.set()
        await asyncio.gather(*busy)


@pytest.mark.parametrize("what", ["tokenize", "detokenize"])
async def test_tokens_and_text_come_by_the_deadline_or_not_at_all(demo_model: Path, what: str) -> None:
    service, free = service_of(demo_model), threading.Event()
    # More than are let into the threads at a time.
    busy = [asyncio.create_task(service._workers.run(free.wait)) for _ in range(8)]
    await asyncio.sleep(0)
    request = ChatRequest(
        "r", Conversation([{"role": "user", "content": "x"}]), [], None, Sampling(max_tokens=1), Deadline(0.01)
    )
    try:
        with pytest.raises(EngineOverloaded, match="deadline"):
            async with asyncio.timeout(5):
                await (service.tokenize(request) if what == "tokenize" else service.detokenize([1], request.deadline))
    finally:
        free.set()
        await asyncio.gather(*busy)
