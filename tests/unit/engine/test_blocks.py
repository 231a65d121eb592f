"""Pool and scheduler, whatever happens: no block is lost, none is owned twice wrongly, and counts are exact."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.language.engine.interface import EngineRequest, Prompt, Sampling, Span
from services.language.engine.torch.blocks import BlockPool, OutOfBlocksError, chain_keys
from services.language.engine.torch.scheduler import Scheduler
from services.language.engine.torch.sequence import Sequence
from services.language.models.generic import Positions
from shared.identity import MediaItem

BLOCK = 4
LONGEST = 9
"""Of the items, in tokens."""


def sequence(number: int, parts: list[int], max_tokens: int) -> Sequence:
    """Of ``parts`` 0 and 1 are text; a greater one is an item of that many tokens, which shows the same wherever it is."""
    tokens: list[int] = []
    spans: list[Span] = []
    for part in parts:
        if part > 1:
            item = MediaItem("image", part)
            item.set_hash(f"{part:032x}")
            spans.append(Span(len(tokens), item, 0, part))
        tokens += [part] * max(1, part)
    prompt = Prompt(tokens, Positions(torch.arange(len(tokens)).unsqueeze(0), len(tokens)), tuple(spans))
    return Sequence.of(number, EngineRequest(str(number), prompt, Sampling(max_tokens)))


class PoolAndScheduler(RuleBasedStateMachine):
    """Adds, steps, cancels and finishes at random; a model of what each block holds runs beside."""

    @initialize(blocks=st.integers(4, 24), running=st.integers(1, 5), budget=st.integers(1, 24), whole_items=st.booleans())
    def begin(self, blocks: int, running: int, budget: int, whole_items: bool) -> None:
        self.pool = BlockPool(blocks, BLOCK)
        self.scheduler = Scheduler(self.pool, running, budget, whole_items)
        self.budget, self.max_running, self.whole_items = budget, running, whole_items
        self.alive: dict[int, Sequence] = {}
        self.contents: dict[int, tuple[int, ...]] = {}
        self.number = 0

    # Few different tokens and lengths, so that prefixes are often shared.
    @rule(parts=st.lists(st.sampled_from([0, 0, 0, 1, 1, 1, 3, LONGEST]), min_size=1, max_size=14), answer=st.integers(1, 10))
    def add(self, parts: list[int], answer: int) -> None:
        made = sequence(self.number, parts, answer)
        if made.prompt_length + answer <= self.scheduler.capacity:
            self.alive[self.number] = made
            self.scheduler.add(made)
            self.number += 1

    @rule(token=st.integers(0, 1))
    def step(self, token: int) -> None:
        chunks = self.scheduler.schedule()
        assert bool(chunks) == bool(self.alive)
        decoding = [chunk for chunk in chunks if chunk.end - chunk.start == 1]
        assert chunks[: len(decoding)] == decoding
        most = max(self.budget, len(self.scheduler.running) + 1) + (LONGEST if self.whole_items else 0)
        assert sum(chunk.end - chunk.start for chunk in chunks) <= most
        assert len({chunk.sequence.number for chunk in chunks}) == len(chunks)
        written: set[int] = set()
        for chunk in chunks:
            one = chunk.sequence
            assert one in self.scheduler.running
            assert chunk.start == one.computed < chunk.end <= len(one.tokens)
            assert len(one.blocks) * BLOCK >= chunk.end
            if self.whole_items:
                assert one.item_across(chunk.end) is None
            # What was found in the cache must be what the sequence would have computed.
            for index in range(chunk.start // BLOCK):
                assert self.contents[one.blocks[index]] == tuple(one.tokens[: (index + 1) * BLOCK])
            for place in range(chunk.start, chunk.end):
                block = one.blocks[place // BLOCK]
                assert self.pool._references[block] == 1, "a shared block would be written"
                written.add(block)
                if place % BLOCK == BLOCK - 1:
                    self.contents[block] = tuple(one.tokens[: place + 1])
                else:
                    self.contents.pop(block, None)
            self.scheduler.computed(chunk)
        for chunk in chunks:
            one = chunk.sequence
            if chunk.end == len(one.tokens):
                one.append(token)
                if one.produced >= one.sampling.max_tokens:
                    self.scheduler.finish(one)
                    del self.alive[one.number]

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.alive:
            number = data.draw(st.sampled_from(sorted(self.alive)))
            self.scheduler.finish(self.alive.pop(number))

    @rule()
    def finish_all(self) -> None:
        for _ in range(2000):
            if not self.alive:
                return
            self.step(0)
        raise AssertionError("no progress")

    @invariant()
    def blocks_are_counted_exactly(self) -> None:
        if not hasattr(self, "pool"):
            return
        holds = [0] * self.pool.num_blocks
        for one in self.alive.values():
            assert len(set(one.blocks)) == len(one.blocks)
            for block in one.blocks:
                holds[block] += 1
        assert holds == self.pool._references
        assert self.pool.used == sum(hold > 0 for hold in holds)
        assert set(self.pool._idle) == {block for block, hold in enumerate(holds) if hold == 0}
        assert {key: block for block, key in enumerate(self.pool._key_of) if key} == self.pool._block_of

    @invariant()
    def every_sequence_is_in_one_queue(self) -> None:
        if not hasattr(self, "pool"):
            return
        queued = [*self.scheduler.running, *self.scheduler.waiting]
        assert sorted(one.number for one in queued) == sorted(self.alive)
        assert len(self.scheduler.running) <= self.max_running
        assert all(not one.blocks for one in self.scheduler.waiting)


TestPoolAndScheduler = PoolAndScheduler.TestCase
TestPoolAndScheduler.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_items_that_stay_whole_are_chunks_of_their_own_where_the_budget_is_too_small() -> None:
    scheduler = Scheduler(BlockPool(16, BLOCK), 1, 4, whole_items=True)
    one = sequence(0, [0, 1, 9, 3, 0, 0], 1)
    scheduler.add(one)
    chunks = []
    while one.remaining:
        [chunk] = scheduler.schedule()
        chunks.append((chunk.start, chunk.end))
        scheduler.computed(chunk)
    assert chunks == [(0, 2), (2, 11), (11, 15), (15, 16)]


def test_equal_chains_mean_equal_beginnings() -> None:
    same = list(chain_keys([1, 2, 3, 4, 5, 6, 7, 8], 4))
    assert len(same) == 2
    assert next(chain_keys([1, 2, 3, 4, 9, 9, 9, 9], 4)) == same[0]
    assert list(chain_keys([0, 2, 3, 4, 5, 6, 7, 8], 4))[1] != same[1]
    assert list(chain_keys([5, 6, 7, 8], 4, parent=same[0])) == same[1:]
    assert list(chain_keys([2**62 + 5] * 4, 4)) != list(chain_keys([2**62 + 6] * 4, 4))


def test_least_recently_used_content_goes_first() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.allocate(3)
    for block, key in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.publish(block, key)
    pool.release([blocks[0]])
    pool.release([blocks[1]])
    assert pool.take_cached([b"a"]) == [blocks[0]]
    pool.release([blocks[0]])
    assert pool.allocate(1) == [blocks[1]]
    assert pool.take_cached([b"b"]) == []
    try:
        pool.allocate(2)
    except OutOfBlocksError:
        assert pool.available == 1
    else:
        raise AssertionError("two blocks were given out where one was left")
