"""Answers that keep to a grammar: in the engine's core with the demo model, and in the sampler."""

from __future__ import annotations

import json
import select
import threading
from typing import Any

import jsonschema
import pytest
import torch

from services.language.engine.interface import EngineRequest, Prompt, Sampling, Step
from services.language.engine.messages import Failure
from services.language.engine.torch.core import EngineCore
from services.language.engine.torch.guide import Allowed, Guide, Guides, closing_of
from services.language.engine.torch.runner import Runner
from services.language.engine.torch.sampler import Sampled, sample
from services.language.engine.torch.sequence import Sequence
from services.language.models.facts import LanguageFacts
from services.language.models.generic import Positions
from services.language.output.schema import json_rule
from services.language.output.vocabulary import Vocabulary
from tests.processes import DEMO_MODEL

POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "name": {"type": "string"}}, "required": ["x", "name"]}


def by_schema(schema: Any) -> str:
    return f"start: {json_rule(schema)}"


class Bench:
    """The core, and what it answers."""

    def __init__(self) -> None:
        self.facts = LanguageFacts(DEMO_MODEL)
        self.runner = Runner.load(DEMO_MODEL, "cpu", "auto", 16)

    def core(self, guides: Guides | None = None, blocks: int = 512) -> EngineCore:
        return EngineCore(self.runner, blocks, 16, 16, 256, guides or self.guides())

    def guides(self) -> Guides:
        return Guides(lambda: Vocabulary(self.facts.tokenizer, self.facts.eos_ids))

    def request(self, grammar: str | None, words: str = "Who are you?", **sampling: Any) -> EngineRequest:
        ids = self.facts.tokenizer.encode(f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n")
        given = {"max_tokens": 200, "temperature": 0, "stop_token_ids": self.facts.eos_ids, **sampling}
        return EngineRequest("r", Prompt(ids, self.facts.half.positions(ids, [])), Sampling(**given), grammar=grammar)

    def run(self, core: EngineCore, *requests: EngineRequest) -> list[list[Step]]:
        """The steps of each request, all computed together."""
        steps: list[list[Step]] = [[] for _ in requests]
        for number, request in enumerate(requests):
            core.add(number, request)
        while core.has_work():
            wait(core)
            for number, outcome in core.step().items():
                assert isinstance(outcome, Step), outcome
                steps[number].append(outcome)
        return steps

    def text(self, steps: list[Step]) -> str:
        ids = [step.token_id for step in steps if step.token_id not in self.facts.eos_ids]
        return str(self.facts.tokenizer.decode(ids))


def wait(core: EngineCore) -> None:
    """Returns when a step would do something."""
    while not core.can_step():
        guides = core._guides
        assert guides is not None
        select.select([guides.wakeup], [], [], 10)
        guides.settle()


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_matches_and_ends_by_itself(bench: Bench, temperature: float) -> None:
    requests = [bench.request(by_schema(POINT), temperature=temperature, seed=seed) for seed in range(4)]
    for steps in bench.run(bench.core(), *requests):
        assert steps[-1].finish_reason == "stop"
        jsonschema.validate(json.loads(bench.text(steps)), POINT)


def test_free_answers_beside_guided_ones_stay_what_they_are(bench: Bench) -> None:
    free, guided = bench.request(None), bench.request(by_schema(POINT), temperature=1, seed=5)
    [alone], [guided_alone] = bench.run(bench.core(), free), bench.run(bench.core(), guided)
    together = bench.run(bench.core(), free, guided, guided, bench.request(by_schema({"type": "boolean"})))
    assert [step.token_id for step in together[0]] == [step.token_id for step in alone]
    assert bench.text(together[1]) == bench.text(together[2]) == bench.text(guided_alone)
    assert bench.text(together[3]) in {"true", "false"}


def test_the_end_is_stop_also_where_end_tokens_do_not_count(bench: Bench) -> None:
    [steps] = bench.run(bench.core(), bench.request('start: "yes" | "no"', stop_token_ids=frozenset()))
    assert bench.text(steps) in {"yes", "no"}
    assert steps[-1].finish_reason == "stop"
    assert steps[-1].token_id not in bench.facts.eos_ids


def test_biases_and_minima_never_leave_the_grammar(bench: Bench) -> None:
    against = dict.fromkeys(bench.facts.tokenizer.encode("yes"), -1e9)
    biased = bench.request('start: "yes"', logit_bias={**against, 5: 1e9}, min_tokens=50)
    several = bench.request("start: /(yes){1,3}/", min_tokens=3, logit_bias=dict.fromkeys(bench.facts.eos_ids, 1e9))
    first, second = bench.run(bench.core(), biased, several)
    assert bench.text(first) == "yes"
    assert bench.text(second).startswith("yesyes")
    assert {first[-1].finish_reason, second[-1].finish_reason} == {"stop"}


def test_log_probabilities_are_those_of_the_model(bench: Bench) -> None:
    free, guided = bench.request(None, logprobs=3), bench.request('start: "zz"', logprobs=3)
    [first, *_], [forced, *_] = bench.run(bench.core(), free, guided)
    assert first.logprobs is not None
    assert forced.logprobs is not None
    assert forced.logprobs.top == first.logprobs.top
    assert forced.logprobs.logprob < first.logprobs.logprob


def test_a_preempted_answer_goes_on_where_it_was(bench: Bench) -> None:
    long = by_schema({"type": "string", "minLength": 150})
    requests = [bench.request(long, temperature=1, seed=seed) for seed in range(6)]
    roomy = bench.run(bench.core(), *requests)
    tight = bench.core(blocks=20)
    again = bench.run(tight, *requests)
    assert tight.load().preemptions > 0
    assert [bench.text(steps) for steps in again] == [bench.text(steps) for steps in roomy]


def test_the_end_that_is_not_allowed_closes_what_is_open(bench: Bench) -> None:
    # The demo model ends its sentence; with its end merely forbidden, it says another, and so on.
    [steps] = bench.run(bench.core(), bench.request(by_schema({"type": "array", "items": {"type": "string"}}), max_tokens=1000))
    assert steps[-1].finish_reason == "stop"
    assert len(steps) < 100
    assert json.loads(bench.text(steps))[0].endswith(".")


class _Held(Guides):
    """Makes no guide until it is let."""

    def __init__(self, vocabulary: Any) -> None:
        super().__init__(vocabulary)
        self.let = threading.Event()

    def _make(self, grammar: str) -> Guide:
        self.let.wait(10)
        return super()._make(grammar)


def test_a_grammar_in_the_making_holds_up_nobody_else(bench: Bench) -> None:
    guides = _Held(lambda: Vocabulary(bench.facts.tokenizer, bench.facts.eos_ids))
    core = bench.core(guides)
    core.add(0, bench.request('start: "yes"'))
    assert core.has_work()
    assert not core.can_step()
    assert core.load().waiting == 1
    free = _finish(core, 1, bench.request(None))
    assert free[-1].finish_reason == "stop"
    assert not core.can_step()
    guides.let.set()
    wait(core)
    [outcome] = core.step().values()
    assert isinstance(outcome, Step)
    assert outcome.queue_seconds > free[0].queue_seconds >= 0
    while core.has_work():
        [outcome] = core.step().values()
    assert isinstance(outcome, Step)
    assert outcome.finish_reason == "stop"


def _finish(core: EngineCore, number: int, request: EngineRequest) -> list[Step]:
    core.add(number, request)
    steps: list[Step] = []
    while not steps or steps[-1].finish_reason is None:
        outcome = core.step()[number]
        assert isinstance(outcome, Step)
        steps.append(outcome)
    return steps


def test_who_leaves_while_its_grammar_is_made_is_forgotten(bench: Bench) -> None:
    guides = _Held(lambda: Vocabulary(bench.facts.tokenizer, bench.facts.eos_ids))
    core = bench.core(guides)
    core.add(0, bench.request('start: "yes"'))
    core.cancel(0)
    assert not core.has_work()
    guides.let.set()
    assert core.step() == {}


def test_a_grammar_that_is_none_ends_its_sequence_alone(bench: Bench) -> None:
    core = bench.core()
    core.add(0, bench.request("start: nothing"))
    wait(core)
    [outcome] = core.step().values()
    assert isinstance(outcome, Failure)
    assert outcome.fault == "grammar"
    assert "nothing" in outcome.message
    assert not core.has_work()
    [steps] = bench.run(core, bench.request('start: "no"'))
    assert bench.text(steps) == "no"


def row(**sampling: Any) -> Sequence:
    request = EngineRequest("r", Prompt([1], Positions(torch.zeros(1, 1, dtype=torch.long), 1)), Sampling(9, **sampling))
    return Sequence.of(0, request)


def guided(logits: list[float], allowed: list[int], closing: list[int], ends: list[int], **sampling: Any) -> Sampled:
    """One row, sampled; ``sampling`` counts all ``ends`` unless it says otherwise."""
    tokens = torch.zeros(1, len(logits), dtype=torch.bool)
    tokens[0, allowed] = True
    may_end = bool(set(ends) & set(allowed))
    sequence = row(**{"temperature": 0, "stop_token_ids": frozenset(ends), **sampling})
    return sample(torch.tensor([logits]), [sequence], Allowed([0], tokens, [not may_end], [closing], ends))


def test_what_closes_has_the_logit_of_the_end() -> None:
    logits = [0.0, 2.0, 1.0, 5.0]
    assert guided(logits, [0, 1, 2], [0], [3]).tokens == [0]
    assert guided([0.0, 6.0, 1.0, 5.0], [0, 1, 2], [0], [3]).tokens == [1]
    assert guided(logits, [0, 1, 2], [], [3]).tokens == [1]
    assert guided(logits, [0, 1, 2], [0], [3], stop_token_ids=frozenset()).tokens == [1]  # its end would not count either
    assert guided(logits, [0, 1, 2], [0], [3], min_tokens=2).tokens == [1]  # nor so early


def test_something_stays_where_all_that_the_grammar_allows_is_forbidden_otherwise() -> None:
    assert guided([0.0, 2.0, 1.0, 5.0], [3], [], [3], min_tokens=2).tokens == [3]
    assert guided([0.0, 2.0, 1.0, 5.0], [1, 3], [], [3], min_tokens=2).tokens == [1]


def test_the_wish_to_end_is_told_where_the_end_is_forbidden() -> None:
    logits = [0.0, 2.0, 1.0, 5.0]
    [wish] = guided(logits, [0, 1, 2], [], [3]).wishes.values()
    assert wish == pytest.approx(float(torch.tensor(logits).softmax(-1)[3]))
    assert guided(logits, [0, 3], [], [3]).wishes == {}


def test_lists_take_no_more_once_the_model_would_have_ended(bench: Bench) -> None:
    guides = bench.guides()
    guide = guides.make(by_schema({"type": "array", "items": {"type": "integer"}, "minItems": 1})).result(10)
    for token in bench.facts.tokenizer.encode("[7"):
        guide.take(token)
    spelled = Vocabulary(bench.facts.tokenizer, bench.facts.eos_ids)
    [comma], [bracket], [digit] = (spelled.ids_of(mark) for mark in ",]7")

    def allowed() -> torch.Tensor:
        found = guides.allowed([None, guide], 600)
        assert found is not None
        assert found.rows == [1]
        assert found.tokens.shape == (1, 600)  # the model has more logits than there are tokens
        assert not found.tokens[0, 518:].any()
        return found.tokens[0]

    guide.wish(0.4)
    assert allowed()[[comma, bracket, digit]].all()
    guide.wish(0.2)
    assert allowed().nonzero().flatten().tolist() == [bracket]


def test_the_wish_to_end_counts_in_json_only(bench: Bench) -> None:
    guides = bench.guides()
    guide = guides.make(r"start: /[\]\d]+END/").result(10)
    guide.wish(1.0)
    found = guides.allowed([guide], 518)
    assert found is not None
    assert (found.unfinished, found.closing) == ([False], [[]])
    assert found.tokens.sum() > 10  # a bracket, and all digits


def test_no_wish_counts_in_text_of_no_form(bench: Bench) -> None:
    guides = bench.guides()
    found = guides.allowed([guides.make(f"start: /(?s:.*)<end>/ {json_rule({'type': 'string'})}").result(10)], 518)
    assert found is not None
    assert found.unfinished == [False]
    assert found.closing == [[]]


def test_a_mask_is_cut_to_the_logits_that_there_are(bench: Bench) -> None:
    guides = bench.guides()
    guide = guides.make('start: "yes"').result(10)
    found = guides.allowed([guide], 100)
    assert found is not None
    assert found.tokens.shape == (1, 100)
    assert guides.allowed([None, None], 100) is None


@pytest.mark.parametrize(
    ("marks", "mark"),
    [
        ('"', '"'),  # a string with a pattern
        ('"}],x', '"'),  # any string
        ("},x", ""),  # a mail address
        ('"]', "]"),  # a list of strings
        ('"}', "}"),  # a member, or none
        (",]", "]"),
        (",}", "}"),
        (",", ","),
        ("", ""),
    ],
)
def test_which_mark_closes(marks: str, mark: str) -> None:
    assert closing_of(set(marks)) == mark
