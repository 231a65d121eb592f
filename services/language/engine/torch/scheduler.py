"""What is computed next: every running answer gets its next token, and what is left of the budget goes to prompts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from services.language.engine.torch.blocks import BlockPool, OutOfBlocksError
from services.language.engine.torch.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``start..end`` of a sequence; they fill blocks that the sequence holds already."""

    sequence: Sequence
    start: int
    end: int

    @property
    def completes(self) -> bool:
        """Whether the sequence's next token follows from this chunk."""
        return self.end == len(self.sequence.tokens)


class Scheduler:
    """First come, first served, under a budget of tokens a step.

    Decoding never waits for prompts: all that decode are in every step, one token each. A prompt is computed in chunks of what
    the budget leaves, in the middle of a picture if need be. When the pool runs dry, the sequence that came last gives its
    blocks up and is computed again later; its tokens so far are kept.

    With ``whole_items``, where a picture's tokens look at those after them, no chunk ends in the middle of one: it ends before,
    or, where it begins with the picture, goes to its end, however much that is.
    """

    def __init__(self, pool: BlockPool, max_running: int, max_batch_tokens: int, whole_items: bool = False) -> None:
        self._pool = pool
        self._whole_items = whole_items
        self._max_running = max_running
        self._max_batch_tokens = max_batch_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._planned: list[Chunk] = []
        self.preemptions = 0
        self.prefix_tokens_asked = 0
        self.prefix_tokens_found = 0

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that the pool could ever hold."""
        return self._pool.num_blocks * self._pool.block_size

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is, and frees what it holds."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._pool.release(sequence.blocks)
        sequence.blocks = []

    def schedule(self) -> list[Chunk]:
        """The next step's work, single tokens first; empty only where there is nothing to do."""
        self._planned = []
        decoding = [sequence for sequence in self.running if sequence.remaining == 1]
        prompts = [sequence for sequence in self.running if sequence.remaining > 1]
        for sequence in decoding:
            self._plan(sequence, 1)
        budget = max(1, self._max_batch_tokens - len(self._planned))
        for sequence in prompts:
            budget -= self._plan(sequence, budget)
        while self.waiting and budget > 0 and len(self.running) < self._max_running:
            if not self._admit(self.waiting[0]):
                break
            self.running.append(self.waiting.popleft())
            budget -= self._plan(self.running[-1], budget)
        # Single tokens first: a prompt whose rest is one token is computed like a decoding one.
        return sorted(self._planned, key=lambda chunk: chunk.end - chunk.start > 1)

    def computed(self, chunk: Chunk) -> None:
        """Says that a chunk's keys and values are in the pool; full blocks become known by their content."""
        sequence, size = chunk.sequence, self._pool.block_size
        sequence.computed = chunk.end
        keys = sequence.extend_keys(size)
        for index in range(chunk.start // size, chunk.end // size):
            self._pool.publish(sequence.blocks[index], keys[index])

    def _plan(self, sequence: Sequence, budget: int) -> int:
        """Plans as much of a sequence as fits into ``budget``; returns how many tokens that is.

        Serving an earlier sequence may have cost this one its blocks; then it is no longer running, and nothing is planned.
        """
        count = min(budget, sequence.remaining)
        if count > 0 and self._whole_items:
            count = self._whole(sequence, count)
        if count <= 0 or sequence not in self.running or not self._grow(sequence, count):
            return 0
        self._planned.append(Chunk(sequence, sequence.computed, sequence.computed + count))
        return count

    def _whole(self, sequence: Sequence, count: int) -> int:
        """As many tokens of a sequence, up to ``count``, as part no item; or all of the item that they begin with."""
        item = sequence.item_across(sequence.computed + count)
        if item is None:
            return count
        first, last = item
        return (first if first > sequence.computed else last) - sequence.computed

    def _admit(self, sequence: Sequence) -> bool:
        """Gives a waiting sequence what the pool knows of its beginning, if there is room for the rest of its prompt."""
        # The last token is always computed: its output is what the answer starts from.
        reusable = (len(sequence.tokens) - 1) // self._pool.block_size
        keys = sequence.extend_keys(self._pool.block_size)[:reusable]
        cached = self._pool.take_cached(keys)
        needed = self._pool.blocks_for(len(sequence.tokens)) - len(cached)
        # With others running, a newcomer leaves each of them room for one more block.
        if needed + len(self.running) > self._pool.available and self.running:
            self._pool.release(cached)
            return False
        sequence.blocks = cached + self._pool.allocate(needed)
        sequence.computed = len(cached) * self._pool.block_size
        if not sequence.preempted:
            sequence.cached_tokens = sequence.computed
            self.prefix_tokens_asked += len(sequence.tokens)
            self.prefix_tokens_found += sequence.computed
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Makes room for ``tokens`` more, at the cost of those that came later; False if the sequence itself had to go."""
        missing = self._pool.blocks_for(sequence.computed + tokens) - len(sequence.blocks)
        while missing > 0:
            try:
                sequence.blocks.extend(self._pool.allocate(missing))
                return True
            except OutOfBlocksError:
                last = self.running[-1]
                self._preempt(last)
                if last is sequence:
                    return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        self._planned = [chunk for chunk in self._planned if chunk.sequence is not sequence]
        self._pool.release(sequence.blocks)
        sequence.blocks, sequence.computed, sequence.preempted = [], 0, True
        self.waiting.appendleft(sequence)
