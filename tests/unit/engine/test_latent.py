"""Latent attention in its absorbed form computes what transformers' own does, and stores a fraction of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DeepseekV3Config

from services.language.engine.torch.attention import NAME, KVPool, PromptPart, Step, register
from services.language.engine.torch.runner import Runner
from services.language.models.generic import LanguageHalf
from services.language.models.latent import LatentAttention, use_latents
from tests.unit.engine.decoders import LATENT, YARN

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "yarn": {"rope_parameters": YARN},
    "whole queries": {"q_lora_rank": None},
    "rotary halves": {"rope_interleave": False},
    "biases": {"attention_bias": True},
}


def made(**more: Any) -> Any:
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_config(DeepseekV3Config(**{**LATENT, **more}), attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval().requires_grad_(False)


def runner(model: Any) -> Runner:
    return Runner(LanguageHalf(model.config, ["image"]), copy.deepcopy(model), CPU, torch.float32, block_size=4)


def prefilled(runner: Runner, model: Any, embeds: Tensor, at: Tensor) -> Tensor:
    """What ``model`` makes of one sequence, by the engine's attention in two chunks and a single token."""
    length = embeds.shape[1]
    pool = KVPool(runner.shapes, 16, 4, embeds.dtype, CPU)
    none = torch.zeros(0, dtype=torch.long)
    blocks, found = torch.randperm(16)[: -(-length // 4)], []
    slots = (blocks[:, None] * 4 + torch.arange(4)).flatten()
    for start, end in ((0, 9), (9, length - 1), (length - 1, length)):
        parts = [PromptPart(0, end - start, end, blocks[: -(-end // 4)])] if end - start > 1 else []
        tables, lengths = (none.view(0, 0), none) if parts else (blocks[None], torch.tensor([end]))
        step = Step(pool, slots[start:end], tables, lengths, parts)
        some = model.model(inputs_embeds=embeds[:, start:end], position_ids=at[:, start:end], use_cache=False, step=step)
        found.append(some.last_hidden_state)
    return torch.cat(found, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_transformers_does(kind: str) -> None:
    model = made(**KINDS[kind])
    embeds, at = torch.randn(1, 21, 64), torch.arange(40, 61)[None]
    expected = model.model(inputs_embeds=embeds, position_ids=at, use_cache=False).last_hidden_state
    run = runner(model)
    assert [type(layer.self_attn) for layer in run._decoder.layers] == [LatentAttention] * 3
    torch.testing.assert_close(prefilled(run, run._model, embeds, at), expected, atol=2e-5, rtol=2e-5)


def test_it_computes_in_bfloat16_as_well_as_transformers_does() -> None:
    exact = made(rope_parameters=YARN)
    embeds, at = torch.randn(1, 21, 64), torch.arange(21)[None]
    expected = exact.model(inputs_embeds=embeds, position_ids=at, use_cache=False).last_hidden_state
    rounded = copy.deepcopy(exact).bfloat16()
    theirs = rounded.model(inputs_embeds=embeds.bfloat16(), position_ids=at, use_cache=False).last_hidden_state
    register()
    use_latents(rounded)
    rounded.config._attn_implementation = NAME
    run = runner(exact)
    ours = prefilled(run, rounded, embeds.bfloat16(), at)
    assert (ours - expected).abs().mean() < 1.5 * (theirs - expected).abs().mean()


def test_a_token_takes_its_latent_and_its_turned_key_once() -> None:
    model = made()
    layers, rank, rope = 3, 32, 8
    assert runner(model).bytes_per_token() == layers * (rank + rope) * 4
    assert [shape.numbers for shape in runner(model).shapes.values()] == [rank + rope] * layers


def test_a_pool_of_latents_holds_each_once() -> None:
    run = runner(made())
    run.allocate(8)
    assert run.pool is not None
    assert all(run.pool.values[layer] is run.pool.keys[layer] for layer in run.shapes)


def test_kimi_k2_5_takes_70_272_bytes_a_token() -> None:
    """61 layers of 512 + 64 numbers of 2 bytes; by heads it would be 61 * 64 * (192 + 128) * 2, 36 times as much."""
    sizes = {"num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512}
    heads = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    config = DeepseekV3Config(**{**LATENT, **sizes, **heads, "num_hidden_layers": 1, "first_k_dense_replace": 1})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    run = Runner(LanguageHalf(config, ["image"]), model, CPU, torch.bfloat16, block_size=4)
    assert 61 * run.bytes_per_token() == 70_272


def test_parameters_and_their_names_stay() -> None:
    model = made()
    names = {name: value.clone() for name, value in model.state_dict().items()}
    use_latents(model)
    after = model.state_dict()
    assert list(names) == list(after)
    assert all(torch.equal(value, after[name]) for name, value in names.items())


class Quantized(nn.Linear):
    """Stands for a layer whose weight is not what it multiplies by."""


def test_where_the_matrix_is_not_plain_the_keys_of_all_heads_are_stored() -> None:
    model = made()
    model.model.layers[1].self_attn.kv_b_proj.__class__ = Quantized
    run = runner(model)
    shapes = list(run.shapes.values())
    assert [shape.numbers for shape in shapes] == [40, 4 * (24 + 12), 40]
    embeds, at = torch.randn(1, 21, 64), torch.arange(21)[None]
    expected = model.model(inputs_embeds=embeds, position_ids=at, use_cache=False).last_hidden_state
    torch.testing.assert_close(prefilled(run, run._model, embeds, at), expected, atol=2e-5, rtol=2e-5)
