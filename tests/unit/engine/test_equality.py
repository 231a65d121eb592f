"""Whatever the engine batches, chunks, preempts or reuses: its greedy tokens are those of the undivided model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.families import make
from tests.processes import DEMO_MODEL
from tests.unit.engine.harness import Model, Part, collect, picture, run

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llava")
"""Each has something of its own: M-RoPE, windows in its tower, deepstack, experts, plain positions. Decoders of all other kinds
are in ``test_decoders.py``."""
LONG = "Describe the picture at the top left of the second picture. " * 6


@pytest.fixture(scope="module", params=["demo", *FAMILIES])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = DEMO_MODEL if request.param == "demo" else make(request.param, tmp_path_factory.mktemp(request.param))
    return Model(Path(folder))


CASES: dict[str, list[Part]] = {
    "text only": ["Hello! What can you do?"],
    "one picture": [picture(1), "What is in the picture?"],
    "picture after text": ["What is this? ", picture(2, 64, 64)],
    "two adjacent pictures": [picture(3), picture(4, 32, 96), "Describe the second picture."],
    "three pictures with text between": ["First: ", picture(5), " second: ", picture(6, 96, 32), " third: ", picture(7)],
    "nothing but a picture": [picture(8)],
    "long text": [LONG],
    "long text around a picture": [LONG, picture(9, 96, 96), LONG],
}


def test_every_kind_of_prompt_alone(model: Model) -> None:
    for name, parts in CASES.items():
        assert run(model.core(), {0: model.request(parts)})[0] == model.expected(parts), name


@pytest.mark.parametrize("batch", [1, 3, 7, 1000])
def test_all_together_in_chunks_of_any_size(model: Model, batch: int) -> None:
    """Chunks of 3 and 7 tokens end in the middle of pictures."""
    requests = {number: model.request(parts) for number, parts in enumerate(CASES.values())}
    tokens = run(model.core(batch=batch), requests)
    assert tokens == {number: model.expected(parts) for number, parts in enumerate(CASES.values())}


def test_32_requests_arriving_at_random(model: Model) -> None:
    rng = random.Random(0)
    kinds = list(CASES.values())
    plan = [(rng.randrange(24), kinds[rng.randrange(len(kinds))], rng.randint(1, 16)) for _ in range(32)]
    core, tokens = model.core(batch=48), {number: list[int]() for number in range(32)}
    for step in range(25):
        for number, (arrival, parts, length) in enumerate(plan):
            if arrival == step:
                core.add(number, model.request(parts, length))
        collect(core, tokens, steps=1)
    collect(core, tokens)
    assert tokens == {number: model.expected(parts, length) for number, (_, parts, length) in enumerate(plan)}
    assert core.load().blocks_used == 0


def test_after_preemption(model: Model) -> None:
    """A pool too small for all: some give their blocks up, in the middle of their answers, and come back."""
    parts: list[list[Part]] = [[f"{number} ", picture(number), LONG[: 40 + 9 * number]] for number in range(6)]
    longest = max(len(model.request(each).prompt.token_ids) for each in parts)
    core = model.core(blocks=(2 * longest + 40) // 4, batch=32)
    tokens = run(core, {number: model.request(each, 40) for number, each in enumerate(parts)})
    assert tokens == {number: model.expected(each, 40) for number, each in enumerate(parts)}
    assert core.load().preemptions > 0
    assert core.load().blocks_used == 0


def test_with_the_prefix_cache_cold_and_hot(model: Model) -> None:
    core = model.core()
    shared, first, second = picture(20, 64, 64), picture(21, 64, 64), picture(22, 64, 64)
    # The same text around pictures of equal size: only what they show tells the prompts apart.
    for parts in ([shared, first, LONG], [shared, second, LONG], [shared, first, LONG]):
        assert run(core, {0: model.request(parts)})[0] == model.expected(parts)


def test_a_second_turn_computes_only_what_is_new(model: Model) -> None:
    core = model.core()
    first = model.request([picture(30), LONG], 16)
    answer = run(core, {0: first})[0]
    words = model.facts.tokenizer.decode(answer)
    again: list[Part] = [picture(30), LONG + words + " And now?"]
    request = model.request(again)
    history = len(first.prompt.token_ids)
    core.add(1, request)
    tokens: dict[int, list[int]] = {1: []}
    cached = 0
    while core.has_work():
        for outcome in core.step().values():
            cached += outcome.cached_tokens  # type: ignore[union-attr]
            tokens[1].append(outcome.token_id)  # type: ignore[union-attr]
    assert tokens[1] == model.expected(again)
    assert history - 4 <= cached < len(request.prompt.token_ids)
    assert core.load().prefix_tokens_found == cached
