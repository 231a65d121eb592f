"""The engine without its process: add, cancel, step. Everything is synchronous and in one thread."""

from __future__ import annotations

from dataclasses import dataclass

from services.language.engine.interface import EngineRequest, FinishReason, Load, Step
from services.language.engine.torch.blocks import BlockPool
from services.language.engine.torch.runner import Runner
from services.language.engine.torch.sampler import sample
from services.language.engine.torch.scheduler import Chunk, Scheduler
from services.language.engine.torch.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Failure:
    """A sequence ended by a bug or by numbers that are not finite; the others go on."""

    message: str


class EngineCore:
    """Continuous batching: each ``step`` computes whatever is due and returns the new tokens by sequence number."""

    def __init__(self, runner: Runner, num_blocks: int, block_size: int, max_running: int, max_batch_tokens: int) -> None:
        self._runner = runner
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

    def load(self) -> Load:
        scheduler = self._scheduler
        return Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_used=self._blocks.used,
            blocks_total=self._blocks.num_blocks,
            prefix_tokens_asked=scheduler.prefix_tokens_asked,
            prefix_tokens_found=scheduler.prefix_tokens_found,
            preemptions=scheduler.preemptions,
        )

    def add(self, number: int, request: EngineRequest) -> None:
        """Queues a request under a number that is its own."""
        self._sequences[number] = Sequence.of(number, request)
        self._scheduler.add(self._sequences[number])

    def cancel(self, number: int) -> None:
        """Drops a request and frees all it holds; one that ended already is not an error."""
        sequence = self._sequences.pop(number, None)
        if sequence is not None:
            self._scheduler.finish(sequence)

    def step(self) -> dict[int, Step | Failure]:
        """Computes one step. One that fails is tried again sequence by sequence, so that only the bad one ends."""
        chunks = self._scheduler.schedule()
        if not chunks:
            return {}
        try:
            return self._compute(chunks)
        except Exception as error:
            if len(chunks) == 1:
                return {chunks[0].sequence.number: self._fail(chunks[0].sequence, f"{type(error).__name__}: {error}")}
            outcomes: dict[int, Step | Failure] = {}
            for chunk in chunks:
                try:
                    outcomes |= self._compute([chunk])
                except Exception as alone:
                    outcomes[chunk.sequence.number] = self._fail(chunk.sequence, f"{type(alone).__name__}: {alone}")
            return outcomes

    def _compute(self, chunks: list[Chunk]) -> dict[int, Step | Failure]:
        logits = self._runner.run(chunks)
        completing = [chunk.sequence for chunk in chunks if chunk.completes]
        for chunk in chunks:
            self._scheduler.computed(chunk)
        if not completing:
            return {}
        sampled = sample(logits, completing)
        outcomes: dict[int, Step | Failure] = {}
        for row, sequence in enumerate(completing):
            if not sampled.finite[row]:
                outcomes[sequence.number] = self._fail(sequence, "the model's output is not finite")
                continue
            sequence.append(sampled.tokens[row])
            reason = _finish_reason(sequence)
            cached = sequence.cached_tokens if sequence.produced == 1 else 0
            outcomes[sequence.number] = Step(sampled.tokens[row], reason, sampled.logprobs[row], cached)
            if reason is not None:
                self.cancel(sequence.number)
        return outcomes

    def _fail(self, sequence: Sequence, message: str) -> Failure:
        """Ends a sequence; what it alone wrote into the pool is forgotten and zeroed."""
        held = list(sequence.blocks)
        self.cancel(sequence.number)
        alone = self._blocks.discard(held)
        assert self._runner.pool is not None
        if alone:
            self._runner.pool.scrub(alone)
        return Failure(message)


def _finish_reason(sequence: Sequence) -> FinishReason | None:
    sampling = sequence.sampling
    if sequence.tokens[-1] in sampling.stop_token_ids and sequence.produced >= sampling.min_tokens:
        return "stop"
    return "length" if sequence.produced >= sampling.max_tokens else None
