"""Our settings and sampling in vLLM's words. Needs vLLM: ``make test-vllm``."""

from __future__ import annotations

import pytest

from services.language.engine.interface import EngineStartError, Sampling
from services.language.engine.options import EngineOptions
from services.language.models.facts import LanguageFacts
from tests.processes import DEMO_MODEL

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def facts() -> LanguageFacts:
    return LanguageFacts(DEMO_MODEL)


def test_sampling_is_vllms_and_only_our_tokens_end_an_answer() -> None:
    from services.language.engine.vllm.sampling import params_of

    sampling = Sampling(
        *(9, 3, 0.7, 5, 0.8, 0.1, 1.2, 0.4, -0.3),
        logit_bias={4: -100.0},
        seed=11,
        stop_token_ids=frozenset([2, 1]),
        logprobs=3,
    )
    found = params_of(sampling, None, {7})
    assert (found.max_tokens, found.min_tokens, found.temperature, found.top_k) == (9, 3, 0.7, 5)
    assert (found.top_p, found.min_p, found.repetition_penalty) == (0.8, 0.1, 1.2)
    assert (found.presence_penalty, found.frequency_penalty) == (0.4, -0.3)
    assert (found.logit_bias, found.seed, found.logprobs) == ({4: -100.0}, 11, 3)
    assert (found.stop_token_ids, found.ignore_eos, found.structured_outputs) == ([1, 2], True, None)


def test_with_a_grammar_vllms_own_end_ends_it_too() -> None:
    from services.language.engine.vllm.sampling import params_of

    found = params_of(Sampling(9, 3, stop_token_ids=frozenset([1])), 'start: "a"', {7})
    assert (found.stop_token_ids, found.min_tokens) == ([1, 7], 0)
    assert found.structured_outputs is not None
    assert found.structured_outputs.grammar == 'start: "a"'


def test_settings_are_vllms_arguments_and_the_operators_come_beside_them(facts: LanguageFacts) -> None:
    from services.language.engine.vllm.arguments import engine_args

    options = EngineOptions(
        str(DEMO_MODEL),
        kv_cache_memory=2**20,
        block_size=40,
        max_running=5,
        max_batch_tokens=77,
        vllm_args={"enforce_eager": True},
    )
    found = engine_args(options, facts)
    assert (found.model, found.dtype, found.enable_mm_embeds) == (str(DEMO_MODEL), "float32", True)
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.kv_cache_memory_bytes) == (5, 77, 2**20)
    assert found.block_size == 64  # on CPUs
    assert set(found.limit_mm_per_prompt.values()) == {0}
    assert found.enforce_eager


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("max_num_seqs", "said by EPD_MAX_RUNNING"),
        ("enable_mm_embeds", "what the engine promises"),
        ("tensor_paralel_size", "none of vLLM's"),
    ],
)
def test_arguments_that_are_not_the_operators_are_refused(facts: LanguageFacts, name: str, told: str) -> None:
    from services.language.engine.vllm.arguments import engine_args

    with pytest.raises(EngineStartError, match=f"EPD_VLLM_ARGS has {name}, .*{told}"):
        engine_args(EngineOptions(str(DEMO_MODEL), vllm_args={name: 1}), facts)
