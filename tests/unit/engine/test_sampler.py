"""Sampling: each parameter does what its definition says, for each row as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from services.language.engine.interface import EngineRequest, Prompt, Sampling
from services.language.engine.torch.sampler import sample
from services.language.engine.torch.sequence import Sequence
from services.language.models.generic import Positions

VOCABULARY = 50


def sequence(answer: list[int] | None = None, prompt: list[int] | None = None, **sampling: Any) -> Sequence:
    ids = prompt or [1, 2, 3]
    request = EngineRequest("r", Prompt(ids, Positions(torch.arange(len(ids))[None], len(ids))), Sampling(100, **sampling))
    made = Sequence.of(0, request)
    for token in answer or []:
        made.append(token)
    return made


def logits(rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def frequencies(row: Tensor, draws: int = 4000, **sampling: Any) -> Tensor:
    """How often each token is drawn from one row."""
    sequences = [sequence(seed=seed, **sampling) for seed in range(draws)]
    tokens = sample(row.expand(draws, -1), sequences).tokens
    return torch.bincount(torch.tensor(tokens), minlength=VOCABULARY) / draws


def test_greedy_takes_the_likeliest() -> None:
    table = logits(5)
    assert sample(table, [sequence(temperature=0) for _ in range(5)]).tokens == table.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("sampling", "warper"),
    [
        ({}, None),
        ({"temperature": 0.5}, None),
        ({"top_k": 3}, TopKLogitsWarper(3)),
        ({"top_p": 0.7}, TopPLogitsWarper(0.7)),
        ({"min_p": 0.2}, MinPLogitsWarper(0.2)),
        ({"top_p": 1e-9}, TopPLogitsWarper(1e-9)),
        ({"top_k": 10, "top_p": 0.9}, lambda ids, row: TopPLogitsWarper(0.9)(ids, TopKLogitsWarper(10)(ids, row))),
    ],
)
def test_draws_follow_the_distribution_that_the_parameters_define(sampling: dict[str, Any], warper: Any) -> None:
    row = logits()
    scaled = row / sampling.get("temperature", 1.0)
    allowed = scaled if warper is None else warper(None, scaled.clone())
    expected = torch.softmax(allowed, -1)[0]
    drawn = frequencies(row, **sampling)
    assert (drawn[expected == 0] == 0).all()
    assert (drawn - expected).abs().max() < 0.03


@pytest.mark.parametrize("temperature", [1e-30, 1e-9, 1e-4])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature: float) -> None:
    row = logits()
    assert sample(row, [sequence(temperature=temperature)]).tokens == row.argmax(-1).tolist()


def test_a_seeded_row_does_not_depend_on_its_neighbours() -> None:
    row = logits(seed=1)
    kinds: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_p": 0.5}, {"temperature": 2.0}, {"presence_penalty": 1.0}]
    for kind in kinds:
        alone = sample(row, [sequence(seed=7, **kind)]).tokens[0]
        crowd = [sequence(seed=seed, **other) for seed, other in enumerate(kinds)] + [sequence(temperature=0)]
        table = torch.cat([logits(len(crowd), seed=2), row])
        assert sample(table, [*crowd, sequence(seed=7, **kind)]).tokens[-1] == alone


def test_repetition_penalty_is_transformers() -> None:
    row = logits()
    seen = sequence(answer=[int(row.argmax()), 9], prompt=[4, 5], repetition_penalty=1.7, temperature=0)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([seen.tokens]), row.clone())
    assert sample(row, [seen]).tokens == expected.argmax(-1).tolist()


def test_presence_and_frequency_count_the_answer_only() -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, 1], row[0, 8], row[0, 9] = 5.0, 4.0, 3.9
    assert sample(row, [sequence(temperature=0, presence_penalty=2.0)]).tokens == [1]  # 1 is in the prompt, not the answer
    assert sample(row, [sequence([1, 8], temperature=0, presence_penalty=2.0)]).tokens == [9]
    assert sample(row, [sequence([1, 1, 8], temperature=0, frequency_penalty=0.6)]).tokens == [9]
    assert sample(row, [sequence([1, 8], temperature=0, frequency_penalty=0.05)]).tokens == [1]


def test_bias_and_a_least_length() -> None:
    row = logits()
    best = int(row.argmax())
    assert sample(row, [sequence(temperature=0, logit_bias={best: -100.0, 7: 50.0})]).tokens == [7]
    held = sequence(temperature=0, stop_token_ids=frozenset({best}), min_tokens=2)
    assert sample(row, [held]).tokens != [best]
    assert sample(row, [sequence([5, 5], temperature=0, stop_token_ids=frozenset({best}), min_tokens=2)]).tokens == [best]


def test_logprobs_are_of_the_model_before_any_parameter() -> None:
    table = logits(2)
    expected = torch.log_softmax(table, -1)
    with_top = sequence(temperature=0, logprobs=3, logit_bias={11: 100.0})
    found = sample(table, [with_top, sequence(temperature=0)])
    assert found.tokens[0] == 11
    assert found.logprobs[1] is None
    first = found.logprobs[0]
    assert first is not None
    assert first.logprob == pytest.approx(float(expected[0, 11]))
    top = expected[0].topk(3)
    assert [token for token, _ in first.top] == top.indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(top.values.tolist())


def test_numbers_that_are_not_finite_are_told_by_row() -> None:
    table = logits(3)
    table[1, 4] = float("nan")
    found = sample(table, [sequence(), sequence(), sequence(temperature=0)])
    assert found.finite == [True, False, True]
