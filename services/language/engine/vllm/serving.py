"""Requests of the service to vLLM, and tokens back."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import zmq.asyncio
from vllm import TokensPrompt
from vllm.exceptions import VLLMClientError
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from services.language.engine.interface import EngineRequest, FinishReason, Load, Prompt, Step
from services.language.engine.messages import Failure, Fault, Outcome, Outcomes, Submit, decode_to_engine, encode, request_of
from services.language.engine.vllm.items import Form, NotServedError, divided
from services.language.engine.vllm.sampling import params_of, steps_of
from services.language.engine.vllm.stats import Meter
from services.language.models.facts import LanguageFacts
from shared.telemetry import get_logger

_log = get_logger("engine")

_LOOK = 0.1
"""Seconds between looks whether vLLM's engine lives, which it does not tell while nothing is asked of it."""

_REASONS: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}


class SequenceError(Exception):
    """One sequence cannot go on; the others do."""


class Serving:
    """Each request is a task that reads vLLM's stream. What all of them got in one turn of the loop travels together."""

    def __init__(self, llm: AsyncLLM, socket: zmq.asyncio.Socket, form: Form, facts: LanguageFacts, meter: Meter) -> None:
        self._llm = llm
        self._socket = socket
        self._form = form
        self._placeholders = facts.half.placeholders
        self._ends = frozenset([facts.tokenizer.eos_token_id]) - {None}
        self._meter = meter
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outcomes: list[Outcome] = []
        self._due = False
        self._epoch = 0

    async def run(self) -> None:
        """Serves until vLLM's engine dies."""
        receiving = asyncio.create_task(self._receive())
        try:
            while not (receiving.done() or self._llm.errored):
                await asyncio.wait([receiving], timeout=_LOOK)
            if receiving.done():
                receiving.result()
        finally:
            for task in (receiving, *self._tasks.values()):
                task.cancel()

    def load(self) -> Load:
        return self._meter.load(bool(self._tasks))

    async def _receive(self) -> None:
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            message = decode_to_engine(frames[0].buffer)
            if isinstance(message, Submit):
                request = request_of(message, [frame.buffer for frame in frames[1:]])
                task = asyncio.create_task(self._serve(message.number, request, message.arrived))
                self._tasks[message.number] = task
                task.add_done_callback(partial(self._ended, message.number))
            elif message.number in self._tasks:
                self._tasks[message.number].cancel()

    def _ended(self, number: int, _: object) -> None:
        """Of each task, also of one that was cancelled before it began."""
        del self._tasks[number]
        self._tell([])

    async def _serve(self, number: int, request: EngineRequest, arrived: float) -> None:
        try:
            await self._generate(number, request, arrived)
        except (EngineDeadError, asyncio.CancelledError):
            await self._forget(number)  # the one ends all of this, the other was asked for
        except Exception as error:
            failure = _failure_of(error, request)
            if failure.fault == "engine":
                _log.error("sequence failed", number=number, reason=failure.message)
            await self._forget(number)
            self._tell([Outcome(number, failure=failure)])

    async def _forget(self, number: int) -> None:
        """Returns when vLLM holds nothing of the request any more."""
        with suppress(EngineDeadError):
            # Cancelled while it was handed over, it may be in vLLM's books without its stream knowing.
            await self._llm.abort(str(number))
            await self._llm.is_paused()  # an answer to this comes after what was asked before

    async def _generate(self, number: int, request: EngineRequest, arrived: float) -> None:
        params = params_of(request.sampling, request.grammar, self._ends)
        while True:
            epoch = self._epoch
            prompt = await self._rendered(request.prompt)
            before = time.monotonic() - arrived
            begun = False
            async with aclosing(self._llm.generate(prompt, params, str(number))) as outputs:
                async for output in outputs:
                    if not begun and self._epoch != epoch:
                        break  # it may have found in the cache what has broken another one since, and was wiped: once more
                    await self._check(output)
                    steps = self._steps(output, request)
                    if not begun and steps:
                        begun = True
                        steps[0] = _first(steps[0], output, before)
                    self._tell([Outcome(number, step) for step in steps])
                else:
                    return

    async def _check(self, output: RequestOutput) -> None:
        """Raises SequenceError where the model's numbers are not finite, after which nobody meets them again: what is cached by
        now is found no more, and what they left is wiped while the sequence still holds it."""
        metrics: Any = output.metrics
        if metrics is not None and metrics.is_corrupted:
            self._epoch += 1
            await self._llm.collective_rpc("scrub_pool")
            raise SequenceError("the model's output is not finite")

    def _steps(self, output: RequestOutput, request: EngineRequest) -> list[Step]:
        """Raises SequenceError where vLLM ended the sequence for a reason that is none of ours."""
        completion = output.outputs[0]
        reason = _REASONS.get(completion.finish_reason)
        if output.finished and (reason is None or not completion.token_ids):
            raise SequenceError(f"vLLM ended the sequence for the reason {completion.finish_reason}")
        return list(steps_of(completion, request.sampling.logprobs, reason))

    async def _rendered(self, prompt: Prompt) -> Any:
        """The prompt as vLLM's engine takes it, its placeholders expanded by vLLM.

        Raises:
            NotServedError: an item is none that vLLM takes.
            SequenceError: vLLM expanded it to other tokens than ours, by which it would answer something else.
        """
        parts = divided(prompt, self._form, self._placeholders)
        given = TokensPrompt(prompt_token_ids=parts.token_ids)
        if parts.data:
            given["multi_modal_data"] = parts.data
            given["multi_modal_uuids"] = {
                kind: [self._identity(value) for value in values] for kind, values in parts.hashes.items()
            }
        if self._epoch:
            given["cache_salt"] = str(self._epoch)
        [rendered] = await self._llm.renderer.render_cmpl_async([given])
        if rendered["prompt_token_ids"] != prompt.token_ids:
            raise SequenceError("vLLM expanded the prompt's items to other tokens than the service did")
        return rendered

    def _identity(self, content_hash: str) -> str:
        """What vLLM's caches know an item by. Numbers that are not finite were kept there by its old name, so it has a new one;
        prompts without items have it by ``cache_salt``."""
        return f"{content_hash}/{self._epoch}" if self._epoch else content_hash

    def _tell(self, outcomes: list[Outcome]) -> None:
        self._outcomes += outcomes
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        self._socket.send(encode(Outcomes(self._outcomes, self.load())))
        self._outcomes = []


def _first(step: Step, output: RequestOutput, before: float) -> Step:
    """The first token, with what is told of the prompt; ``before`` are the seconds until vLLM had it."""
    metrics: Any = output.metrics
    queued = 0.0 if metrics is None else max(0.0, metrics.scheduled_ts - metrics.queued_ts)
    return replace(step, cached_tokens=output.num_cached_tokens or 0, queue_seconds=before + queued)


def _failure_of(error: Exception, request: EngineRequest) -> Failure:
    cause = error.__cause__ if isinstance(error, EngineGenerateError) and error.__cause__ is not None else error
    if isinstance(cause, SequenceError):
        return Failure(str(cause))
    if isinstance(cause, NotServedError):
        return Failure(str(cause).rstrip("."), "request")
    if isinstance(cause, VLLMClientError):
        fault: Fault = "grammar" if request.grammar is not None else "request"
        return Failure(str(cause).rstrip("."), fault)
    return Failure(f"{type(cause).__name__}: {cause}")
