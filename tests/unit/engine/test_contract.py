"""What any engine promises (``engine/interface.py``). Another engine joins by a line in ``ENGINES``; vLLM joins where it is
installed (``make test-vllm``)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch

from services.language.engine.choice import make_engine_of
from services.language.engine.interface import EngineRequest, EngineStartError, Prompt, Sampling, Span, Step
from services.language.engine.options import EngineName, EngineOptions
from services.language.engine.process import ProcessEngine
from services.language.models.facts import LanguageFacts
from shared.errors import EngineOverloaded, EpdError, InternalError, InvalidRequest
from shared.identity import MediaItem
from tests.processes import DEMO_MODEL

OPTIONS = EngineOptions(str(DEMO_MODEL), max_queue=8, max_running=4, kv_cache_memory=2048 * 16 * 200, log_level="error")


@dataclass(frozen=True)
class Kind:
    """An engine, how it runs here, how many tokens its blocks have and a sequence may have, and how long it may take to start
    (seconds)."""

    name: EngineName
    options: EngineOptions = OPTIONS
    block: int = 16
    capacity: int = 3200
    patience: float = 60

    def make(self, **changes: Any) -> ProcessEngine:
        made = make_engine_of(self.name)(replace(self.options, **changes))
        assert isinstance(made, ProcessEngine)
        return made


# On CPUs vLLM takes blocks of 32 tokens or more, and to compile would take longer than all the rest.
VLLM = Kind("vllm", replace(OPTIONS, block_size=32, vllm_args={"enforce_eager": True}), 32, 2048, 600)
ENGINES = [pytest.param(Kind("torch"), id="torch"), pytest.param(VLLM, id="vllm", marks=pytest.mark.vllm)]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def facts() -> LanguageFacts:
    return LanguageFacts(DEMO_MODEL)


@pytest.fixture(scope="module", params=ENGINES)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(kind: Kind) -> AsyncIterator[ProcessEngine]:
    """One for all tests of its kind; in the end no process of it is left."""
    before = processes()
    made = kind.make()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
    assert processes() == before


def hello(facts: LanguageFacts, words: str = "Hello!", **sampling: Any) -> EngineRequest:
    ids = facts.tokenizer.encode(f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n")
    given = {"max_tokens": 32, "temperature": 0, "stop_token_ids": facts.eos_ids, **sampling}
    return EngineRequest("r", Prompt(ids, facts.half.positions(ids, [])), Sampling(**given))


async def tokens(engine: ProcessEngine, request: EngineRequest) -> list[Step]:
    async with aclosing(engine.submit(request)) as steps:
        return [step async for step in steps]


async def until(condition: Callable[[], bool], timeout: float = 30) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


async def test_an_answer_ends_with_its_reason(engine: ProcessEngine, facts: LanguageFacts) -> None:
    steps = await tokens(engine, hello(facts))
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert steps[-1].finish_reason == "stop"
    assert steps[-1].token_id in facts.eos_ids
    assert facts.tokenizer.decode([step.token_id for step in steps[:-1]]).startswith("Hello!")
    short = await tokens(engine, hello(facts, max_tokens=3))
    assert [step.token_id for step in short] == [step.token_id for step in steps[:3]]
    assert short[-1].finish_reason == "length"


async def test_many_at_once_are_each_answered_as_if_alone(engine: ProcessEngine, facts: LanguageFacts) -> None:
    words = ["Hello!", "Who are you?", "Thank you.", "Say yes.", "Goodbye.", "Say no.", "Hi"]
    alone = [await tokens(engine, hello(facts, word)) for word in words]
    together = await asyncio.gather(*(tokens(engine, hello(facts, word)) for word in words))
    for one, other in zip(alone, together, strict=True):
        assert [step.token_id for step in one] == [step.token_id for step in other]


async def test_seeds_decide_whatever_else_runs(engine: ProcessEngine, facts: LanguageFacts) -> None:
    wild = hello(facts, temperature=1.5, seed=3, max_tokens=24, stop_token_ids=frozenset())
    alone = [step.token_id for step in await tokens(engine, wild)]
    others = [hello(facts, "Who are you?", temperature=1.0, seed=seed) for seed in range(5)]
    crowd = await asyncio.gather(*(tokens(engine, other) for other in others), tokens(engine, wild))
    assert [step.token_id for step in crowd[-1]] == alone


async def test_logprobs_come_only_where_asked_for(engine: ProcessEngine, facts: LanguageFacts) -> None:
    plain, asked = await tokens(engine, hello(facts)), await tokens(engine, hello(facts, logprobs=2))
    assert all(step.logprobs is None for step in plain)
    for step in asked:
        assert step.logprobs is not None
        assert step.logprobs.top[0] == (step.token_id, pytest.approx(step.logprobs.logprob))
        assert len(step.logprobs.top) == 2


async def test_a_repeated_prompt_is_found_in_the_cache(engine: ProcessEngine, facts: LanguageFacts, kind: Kind) -> None:
    request = hello(facts, "How many pictures can I send? " * 8)
    first, second = await tokens(engine, request), await tokens(engine, request)
    assert [step.token_id for step in first] == [step.token_id for step in second]
    assert second[0].cached_tokens >= len(request.prompt.token_ids) - kind.block - 1
    assert all(step.cached_tokens == 0 for step in second[1:])


async def test_leaving_early_frees_everything_within_a_step(engine: ProcessEngine, facts: LanguageFacts) -> None:
    endless = hello(facts, max_tokens=1500, stop_token_ids=frozenset())
    leaving = [engine.submit(endless) for _ in range(4)]
    for steps in leaving:
        await anext(steps)
    assert engine.load().running == 4
    for steps in leaving:
        await steps.aclose()
    await until(lambda: engine.load().running == engine.load().waiting == engine.load().blocks_used == 0)


async def test_a_full_queue_refuses_at_once(engine: ProcessEngine, facts: LanguageFacts) -> None:
    endless = hello(facts, max_tokens=1500, stop_token_ids=frozenset())
    accepted = [engine.submit(endless) for _ in range(8)]
    try:
        with pytest.raises(EngineOverloaded):
            engine.submit(endless)
        await anext(accepted[0])
        await until(lambda: engine.load().waiting == 4)
    finally:
        for steps in accepted:
            await steps.aclose()  # most of them were never begun
    await until(lambda: engine.load().running == engine.load().waiting == 0)
    assert (await tokens(engine, hello(facts)))[-1].finish_reason == "stop"


async def test_an_item_whose_tokens_are_parted_is_held_once(facts: LanguageFacts) -> None:
    item = MediaItem("image", 4, embeds=torch.zeros(4, 128), deepstack=(torch.zeros(4, 128),))
    spans = tuple(Span(2 * row, item, row, 1) for row in range(4))
    assert Prompt([1] * 8, facts.half.positions([1] * 8, []), spans).embedding_bytes == 2 * 4 * 128 * 4


async def test_guided_answers_keep_to_their_grammars_beside_free_ones(engine: ProcessEngine, facts: LanguageFacts) -> None:
    guided = replace(hello(facts, temperature=1, seed=1), grammar='start: "yes" | "no"')
    several = [guided, hello(facts), replace(guided, grammar="start: /[a-c]{3}/"), guided]
    first, free, other, again = await asyncio.gather(*(tokens(engine, request) for request in several))

    def text(steps: list[Step]) -> str:
        return str(facts.tokenizer.decode([step.token_id for step in steps if step.token_id not in facts.eos_ids]))

    assert text(first) == text(again) in {"yes", "no"}
    assert len(text(other)) == 3
    assert set(text(other)) <= set("abc")
    assert text(free).startswith("Hello!")
    assert {steps[-1].finish_reason for steps in (first, other, again)} == {"stop"}


async def test_a_grammar_that_is_none_ends_its_request_only(engine: ProcessEngine, facts: LanguageFacts) -> None:
    running = engine.submit(hello(facts, max_tokens=200, stop_token_ids=frozenset()))
    await anext(running)
    with pytest.raises(InvalidRequest, match="nothing"):
        await tokens(engine, replace(hello(facts), grammar="start: nothing"))
    async with aclosing(running) as rest:
        assert [step async for step in rest][-1].finish_reason == "length"


async def test_the_wait_for_a_place_is_told_with_the_first_token(engine: ProcessEngine, facts: LanguageFacts) -> None:
    endless = hello(facts, max_tokens=700, stop_token_ids=frozenset())
    running = [engine.submit(endless) for _ in range(4)]
    first = [await anext(steps) for steps in running]
    waiting = engine.submit(hello(facts))
    for steps in running:
        async with aclosing(steps) as rest:
            assert all([step.queue_seconds == 0 async for step in rest])
    [begun, *others] = [step async for step in waiting]
    assert begun.queue_seconds > max(step.queue_seconds for step in first) >= 0
    assert all(step.queue_seconds == 0 for step in others)


async def test_what_could_never_fit_is_refused_with_the_numbers(
    engine: ProcessEngine, facts: LanguageFacts, kind: Kind
) -> None:
    with pytest.raises(InvalidRequest, match=str(kind.capacity)):
        engine.submit(hello(facts, max_tokens=100_000))


async def test_numbers_that_are_not_finite_end_one_sequence_only(engine: ProcessEngine, facts: LanguageFacts) -> None:
    item = MediaItem("image", 4, (1, 4, 4))
    item.set_hash("ab" * 16)
    item.embeds = torch.full((4, 128), float("nan"))
    item.deepstack = (torch.zeros(4, 128), torch.zeros(4, 128))
    ids = [1, 2, *[facts.half.placeholders["image"]] * 4, 3]
    spans = (Span(2, item, 0, 4),)
    bad = EngineRequest("bad", Prompt(ids, facts.half.positions(ids, spans), spans), hello(facts).sampling)
    good = hello(facts, max_tokens=64, stop_token_ids=frozenset())
    expected = [step.token_id for step in await tokens(engine, good)]
    running = engine.submit(good)
    seen = [(await anext(running)).token_id]
    with pytest.raises(InternalError, match="not finite"):
        await tokens(engine, bad)
    async with aclosing(running) as rest:
        seen += [step.token_id async for step in rest]
    assert seen == expected
    # What it wrote is not found by an equal picture that is good.
    item.embeds = torch.zeros(4, 128)
    assert (await tokens(engine, bad))[0].cached_tokens == 0


def processes() -> set[psutil.Process]:
    """Engine processes of this one, and what these have started; not Python's own that tidy up after others."""
    ours = [child for child in psutil.Process().children() if any("engine" in word for word in child.cmdline())]
    found = [*ours, *(below for child in ours for below in child.children(recursive=True))]
    return {process for process in found if not any("resource_tracker" in word for word in process.cmdline())}


@pytest.mark.timeout(1200)  # vLLM starts twice
async def test_a_dead_process_ends_its_requests_and_is_replaced(
    engine: ProcessEngine, facts: LanguageFacts, kind: Kind
) -> None:
    victims: list[Callable[..., psutil.Process]] = [min, max]  # of several processes, the first and the last
    for victim in victims:
        started, restarts = processes(), engine.restarts
        running = engine.submit(hello(facts, max_tokens=1500, stop_token_ids=frozenset()))
        await anext(running)
        victim(started, key=lambda process: process.create_time()).send_signal(signal.SIGKILL)
        with pytest.raises(EpdError, match="ended unexpectedly"):
            async for _ in running:
                pass
        assert not engine.ready()
        with pytest.raises(EngineOverloaded, match="restarted"):
            engine.submit(hello(facts))
        await until(engine.ready, kind.patience)
        assert (await tokens(engine, hello(facts)))[-1].finish_reason == "stop"
        assert engine.restarts == restarts + 1
        assert not [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.timeout(1200)
async def test_what_cannot_start_says_why(tmp_path: Path, kind: Kind) -> None:
    tiny = kind.make(kv_cache_memory=1)
    with pytest.raises(EngineStartError, match="KV_CACHE_MEMORY"):
        await tiny.start()
    await tiny.stop()
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    foreign = kind.make(folder=str(tmp_path))
    with pytest.raises(EngineStartError, match="family bert are not served"):
        await foreign.start()
    await foreign.stop()
