"""The books of the process beside vLLM, whose engine stands still here."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import zmq.asyncio

from services.language.engine.interface import EngineRequest, Load, Prompt, Sampling
from services.language.engine.messages import Cancel, Outcomes, decode_from_engine, encode, submission
from services.language.models.generic import Positions

pytestmark = pytest.mark.vllm


class StillEngine:
    """Stands for vLLM's; never answers."""

    errored = False

    def __init__(self) -> None:
        self.renderer = SimpleNamespace(render_cmpl_async=self._never)

    async def _never(self, _: object) -> None:
        await asyncio.Event().wait()

    async def abort(self, _: str) -> None: ...

    async def is_paused(self) -> None: ...


class Busy:
    """Stands for the meter: one sequence runs where there is a task at all."""

    def load(self, busy: bool) -> Load:
        return Load(int(busy), 0)


async def test_a_request_that_is_cancelled_before_it_begins_is_forgotten() -> None:
    from services.language.engine.vllm.items import Form
    from services.language.engine.vllm.serving import Serving

    context = zmq.asyncio.Context()
    here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    here.bind("inproc://requests")
    there.connect("inproc://requests")
    tokenizer = SimpleNamespace(eos_token_id=1)
    facts: Any = SimpleNamespace(half=SimpleNamespace(placeholders={}), tokenizer=tokenizer)
    serving = Serving(cast(Any, StillEngine()), there, cast(Form, None), facts, cast(Any, Busy()))
    prompt = Prompt([1, 2], Positions(torch.zeros(1, 2, dtype=torch.int64), 2))
    here.send_multipart(submission(7, EngineRequest("r", prompt, Sampling(4))))
    here.send_multipart([encode(Cancel(7))])
    running = asyncio.create_task(serving.run())
    try:
        async with asyncio.timeout(30):
            told = decode_from_engine(await here.recv())
        assert isinstance(told, Outcomes)
        assert told.load.running == serving.load().running == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        context.destroy(linger=0)


def test_every_seed_is_a_seed_of_vllms() -> None:
    from services.language.engine.vllm.sampling import params_of

    for seed in (0, 7, -1, -2, 2**63 - 1, 2**63, -(2**63)):
        found = params_of(Sampling(4, seed=seed), None, ()).seed
        assert found is not None
        assert 0 <= found < 2**63
