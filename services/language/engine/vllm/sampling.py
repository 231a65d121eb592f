"""Our sampling in vLLM's words, and its steps in ours."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vllm import SamplingParams
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from services.language.engine.interface import FinishReason, Sampling, Step, TokenLogprobs
from services.language.engine.vllm.grammar import one_text


def params_of(sampling: Sampling, grammar: str | None, ends: Collection[int]) -> SamplingParams:
    """vLLM's parameters. Only our own tokens end the answer; with a grammar also ``ends``, which vLLM writes where the grammar
    allows nothing more, and then at once, whatever ``min_tokens`` says."""
    guided = grammar is not None
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=0 if guided else min(sampling.min_tokens, sampling.max_tokens),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias) or None,
        # vLLM takes -1 for none, and on GPUs keeps 64 bits with a sign.
        seed=None if sampling.seed is None else sampling.seed & (2**63 - 1),
        stop_token_ids=sorted(sampling.stop_token_ids.union(ends) if guided else sampling.stop_token_ids),
        ignore_eos=True,
        logprobs=sampling.logprobs,
        structured_outputs=None if grammar is None else StructuredOutputsParams(grammar=one_text(grammar)),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def steps_of(output: CompletionOutput, wanted: int | None, reason: FinishReason | None) -> Iterator[Step]:
    """The tokens that one output brings; the last has the ``reason`` why it is the last of the answer. ``wanted`` alternatives
    are told of each where it is not None."""
    tokens = list(output.token_ids)
    for at, token in enumerate(tokens):
        logprobs = None
        if wanted is not None and output.logprobs is not None:
            logprobs = _logprobs(output.logprobs[at], token, wanted)
        yield Step(token, reason if at == len(tokens) - 1 else None, logprobs)


def _logprobs(found: dict[int, Logprob], token: int, wanted: int) -> TokenLogprobs:
    ranked = sorted((each.rank or 0, other, each.logprob) for other, each in found.items())
    return TokenLogprobs(found[token].logprob, tuple((other, value) for _, other, value in ranked[:wanted]))
