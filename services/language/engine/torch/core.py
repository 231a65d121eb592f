"""The engine without its process: add, cancel, step. Everything is synchronous and in one thread."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace

from services.language.engine.interface import EngineRequest, FinishReason, Load, Step
from services.language.engine.messages import Failure, Fault
from services.language.engine.torch.blocks import BlockPool
from services.language.engine.torch.guide import Guide, Guides
from services.language.engine.torch.runner import Runner
from services.language.engine.torch.sampler import sample
from services.language.engine.torch.scheduler import Chunk, Scheduler
from services.language.engine.torch.sequence import Sequence
from services.language.output.vocabulary import GrammarError


class EngineCore:
    """Continuous batching: each ``step`` computes whatever is due and returns the new tokens by sequence number.

    A sequence with a grammar waits beside the others until ``guides`` have its guide, and holds up none of them. Without
    ``guides`` there may be no grammars.
    """

    def __init__(
        self,
        runner: Runner,
        num_blocks: int,
        block_size: int,
        max_running: int,
        max_batch_tokens: int,
        guides: Guides | None = None,
    ) -> None:
        self._runner = runner
        self._guides = guides
        self._unguided: dict[int, Future[Guide]] = {}
        runner.allocate(num_blocks)
        self._blocks = BlockPool(num_blocks, block_size)
        self._scheduler = Scheduler(self._blocks, max_running, max_batch_tokens, whole_items=runner.half.bidirectional)
        self._sequences: dict[int, Sequence] = {}

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that could ever be served."""
        return self._scheduler.capacity

    def has_work(self) -> bool:
        return bool(self._sequences)

    def can_step(self) -> bool:
        """Whether a step would do anything: not where all that there is waits for guides."""
        return len(self._sequences) > len(self._unguided) or any(future.done() for future in self._unguided.values())

    def load(self) -> Load:
        scheduler = self._scheduler
        return Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._unguided),
            blocks_used=self._blocks.used,
            blocks_total=self._blocks.num_blocks,
            prefix_tokens_asked=scheduler.prefix_tokens_asked,
            prefix_tokens_found=scheduler.prefix_tokens_found,
            preemptions=scheduler.preemptions,
        )

    def add(self, number: int, request: EngineRequest, arrived: float | None = None) -> None:
        """Queues a request under a number that is its own; it came at ``arrived`` on the monotonic clock, or now."""
        arrived = time.monotonic() if arrived is None else arrived
        self._sequences[number] = Sequence.of(number, request, arrived)
        if request.grammar is None:
            self._scheduler.add(self._sequences[number])
        else:
            assert self._guides is not None
            self._unguided[number] = self._guides.make(request.grammar)

    def cancel(self, number: int) -> None:
        """Drops a request and frees all it holds; one that ended already is not an error."""
        sequence = self._sequences.pop(number, None)
        unguided = self._unguided.pop(number, None)
        if unguided is not None:
            unguided.cancel()
        if sequence is not None:
            self._scheduler.finish(sequence)

    def step(self) -> dict[int, Step | Failure]:
        """Computes one step. One that fails is tried again sequence by sequence, so that only the bad one ends."""
        outcomes: dict[int, Step | Failure] = dict(self._guided())
        chunks = self._scheduler.schedule()
        if not chunks:
            return outcomes
        try:
            return outcomes | self._compute(chunks)
        except Exception as error:
            if len(chunks) == 1:
                return outcomes | {chunks[0].sequence.number: self._fail(chunks[0].sequence, _described(error))}
            for chunk in chunks:
                try:
                    outcomes |= self._compute([chunk])
                except Exception as alone:
                    outcomes[chunk.sequence.number] = self._fail(chunk.sequence, _described(alone))
            return outcomes

    def _guided(self) -> dict[int, Failure]:
        """Lets those sequences in whose guides are there; returns those that get none."""
        failures: dict[int, Failure] = {}
        for number in [number for number, future in self._unguided.items() if future.done()]:
            sequence, future = self._sequences[number], self._unguided.pop(number)
            try:
                sequence.guide = future.result()
            except Exception as error:
                text = str(error) if isinstance(error, GrammarError) else _described(error)
                fault: Fault = "grammar" if isinstance(error, GrammarError) else "engine"
                failures[number] = self._fail(sequence, text, fault)
            else:
                self._scheduler.add(sequence)
        return failures

    def _compute(self, chunks: list[Chunk]) -> dict[int, Step | Failure]:
        now = time.monotonic()
        for chunk in chunks:
            if chunk.sequence.begun is None:
                chunk.sequence.begun = now
        logits = self._runner.run(chunks)
        completing = [chunk.sequence for chunk in chunks if chunk.completes]
        for chunk in chunks:
            self._scheduler.computed(chunk)
        if not completing:
            return {}
        guides = [sequence.guide for sequence in completing]
        allowed = None if self._guides is None else self._guides.allowed(guides, logits.shape[1])
        sampled = sample(logits, completing, allowed)
        outcomes: dict[int, Step | Failure] = {}
        for row, sequence in enumerate(completing):
            if not sampled.finite[row]:
                outcomes[sequence.number] = self._fail(sequence, "the model's output is not finite")
                continue
            if sequence.guide is not None:
                sequence.guide.wish(sampled.wishes.get(row, 0.0))
            sequence.append(sampled.tokens[row])
            problem = None if sequence.guide is None else sequence.guide.problem
            if problem is not None:
                outcomes[sequence.number] = self._fail(sequence, problem, "grammar")
                continue
            reason = _finish_reason(sequence)
            step = Step(sampled.tokens[row], reason, sampled.logprobs[row])
            if sequence.produced == 1:
                waited = max(0.0, (sequence.begun or now) - sequence.arrived)
                step = replace(step, cached_tokens=sequence.cached_tokens, queue_seconds=waited)
            outcomes[sequence.number] = step
            if reason is not None:
                self.cancel(sequence.number)
        return outcomes

    def _fail(self, sequence: Sequence, message: str, fault: Fault = "engine") -> Failure:
        """Ends a sequence; what it alone wrote into the pool is forgotten and zeroed."""
        held = list(sequence.blocks)
        self.cancel(sequence.number)
        alone = self._blocks.discard(held)
        assert self._runner.pool is not None
        if alone:
            self._runner.pool.scrub(alone)
        return Failure(message, fault)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _finish_reason(sequence: Sequence) -> FinishReason | None:
    sampling = sequence.sampling
    if sequence.tokens[-1] in sampling.stop_token_ids and sequence.produced >= sampling.min_tokens:
        return "stop"
    if sequence.guide is not None and sequence.guide.ended:
        return "stop"
    return "length" if sequence.produced >= sampling.max_tokens else None
