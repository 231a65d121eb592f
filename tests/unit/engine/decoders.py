"""Decoders with random weights, of each kind that served families have: in the engine, and as transformers has them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Ernie4_5_VLMoeConfig,
    Ernie4_5_VLMoeForConditionalGeneration,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2Config,
    Qwen3Config,
)

from services.language.engine.interface import EngineRequest, Prompt, Sampling, Span
from services.language.engine.torch.core import EngineCore
from services.language.engine.torch.runner import Runner
from services.language.models.ernie4_5_vl_moe import ErnieLanguageHalf
from services.language.models.generic import LanguageHalf, Positions
from shared.identity import MediaItem

BLOCK = 4
WIDTH = 64
VOCABULARY = 128
PICTURE = 100
"""The token of pictures; those from here on are in no text."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
GEMMA = {**SIZES, "initializer_range": 0.1}
"""Its embeddings are multiplied by 8."""
KINDS = ["full_attention", "sliding_attention", "full_attention"]
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
LATENT: dict[str, Any] = {
    **{name: size for name, size in SIZES.items() if name != "head_dim"},
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def _causal(config: Any) -> Any:
    return AutoModelForCausalLM.from_config(config)


def _glm() -> Any:
    text = {**SIZES, "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}}
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": WIDTH, "patch_size": 8}
    return Glm4vForConditionalGeneration(Glm4vConfig(text_config=text, vision_config=vision, tie_word_embeddings=False))


def _ernie() -> Any:
    text = {**SIZES, "rope_parameters": {**MROPE, "mrope_section": [3, 3, 2]}}
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_intermediate_size": [48, 32]}
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "patch_size": 8}
    names = ("image_token_id", "image_start_token_id", "image_end_token_id")
    marks = {name: PICTURE + at for at, name in enumerate((*names, *(name.replace("image", "video") for name in names)))}
    config = Ernie4_5_VLMoeConfig(text_config={**text, **experts}, vision_config=vision, tie_word_embeddings=False, **marks)
    return Ernie4_5_VLMoeForConditionalGeneration(config)


def _omni() -> Any:
    text = {**SIZES, "rope_parameters": MROPE}
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": WIDTH, "patch_size": 8}
    audio = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "output_dim": WIDTH}
    config = Qwen2_5OmniThinkerConfig(text_config=text, vision_config=vision, audio_config=audio, tie_word_embeddings=False)
    return Qwen2_5OmniThinkerForConditionalGeneration(config)


DECODERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: _causal(LlamaConfig(**SIZES)),
    "mistral": lambda: _causal(MistralConfig(**SIZES, sliding_window=9)),
    "ministral3": lambda: _causal(
        Ministral3Config(**SIZES, rope_parameters={**YARN, "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.5})
    ),
    "qwen2": lambda: _causal(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=9, layer_types=KINDS, max_window_layers=0)
    ),
    "qwen3": lambda: _causal(Qwen3Config(**SIZES)),
    "gemma2": lambda: _causal(
        Gemma2Config(**GEMMA, sliding_window=9, layer_types=KINDS, query_pre_attn_scalar=16, attn_logit_softcapping=0.5)
    ),
    "gemma3": lambda: _causal(Gemma3TextConfig(**GEMMA, sliding_window=9, layer_types=KINDS, query_pre_attn_scalar=16)),
    "deepseek_v3": lambda: _causal(DeepseekV3Config(**LATENT, rope_parameters=YARN)),
    "glm4v": _glm,
    "ernie4_5_vl_moe": _ernie,
    "qwen2_5_omni": _omni,
}
HALVES: dict[str, type[LanguageHalf]] = {"ernie4_5_vl_moe": ErnieLanguageHalf}


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture of ``tokens`` tokens; equal seeds show the same."""

    seed: int
    tokens: int


Part = Sequence[int] | Shown
"""Tokens of text, or a picture."""


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(2, PICTURE), k=count)


class Decoder:
    """One decoder: the whole as transformers made it, and a copy of it in the engine."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(2)
        self.whole: Any = DECODERS[name]().eval().requires_grad_(False)
        _stir(self.whole)
        self.half = HALVES.get(name, LanguageHalf)(self.whole.config, ["image"])
        self.runner = Runner(self.half, copy.deepcopy(self.whole), torch.device("cpu"), torch.float32, BLOCK)

    def core(self, blocks: int = 512, running: int = 64, batch: int = 64) -> EngineCore:
        return EngineCore(self.runner, blocks, BLOCK, running, batch)

    def request(self, parts: Sequence[Part], max_tokens: int = 10, **sampling: Any) -> EngineRequest:
        ids: list[int] = []
        spans: list[Span] = []
        for part in parts:
            if isinstance(part, Shown):
                spans.append(Span(len(ids), shown(part), 0, part.tokens))
                ids += [PICTURE] * part.tokens
            else:
                ids += part
        prompt = Prompt(ids, self._positions(len(ids), spans), tuple(spans))
        return EngineRequest("r", prompt, Sampling(max_tokens, **{"temperature": 0, **sampling}))

    def _positions(self, count: int, spans: Sequence[Span]) -> Positions:
        """Any will do for an engine, so these have nothing to do with a family: pictures are three tokens wide."""
        ids = torch.arange(count).expand(3 if self.half.by_grid else 1, -1).clone()
        for span in spans if self.half.by_grid else ():
            inside = torch.arange(span.tokens)
            ids[:, span.start : span.start + span.tokens] = span.start + torch.stack([inside * 0, inside // 3, inside % 3])
        return Positions(ids, int(ids.max()) + 1)

    @torch.inference_mode()
    def expected(self, parts: Sequence[Part], max_tokens: int = 10) -> list[int]:
        """Greedy tokens of the whole, each computed from the beginning, with nothing kept and nothing packed."""
        prompt = self.request(parts).prompt
        decoder = self.whole.get_decoder()
        tokens = list(prompt.token_ids)
        embeds = decoder.get_input_embeddings()(torch.tensor([tokens]))
        for span in prompt.spans:
            embeds[0, span.start : span.start + span.tokens] = span.item.embeds
        at = prompt.positions.ids
        while True:
            kinds = self.half.token_inputs(prompt.token_ids, prompt=True)
            later = len(tokens) - len(prompt.token_ids)
            extra = {name: torch.nn.functional.pad(value, (0, later))[None] for name, value in kinds.items()}
            where = at.unsqueeze(1) if self.half.by_grid else at
            hidden = decoder(inputs_embeds=embeds, position_ids=where, use_cache=False, **extra).last_hidden_state
            if later == max_tokens:
                return tokens[-max_tokens:]
            token = self.whole.lm_head(hidden[:, -1]).argmax(-1)
            tokens.append(int(token))
            embeds = torch.cat([embeds, decoder.get_input_embeddings()(token)[None]], 1)
            at = torch.cat([at, torch.full((at.shape[0], 1), prompt.positions.following + later)], 1)

    @torch.inference_mode()
    def generated(self, parts: Sequence[Part], max_tokens: int = 10) -> list[int]:
        """Greedy tokens of transformers' own ``generate``, for decoders with one position a token."""
        prompt = self.request(parts).prompt
        embeds = self.whole.get_decoder().get_input_embeddings()(torch.tensor([prompt.token_ids]))
        for span in prompt.spans:
            embeds[0, span.start : span.start + span.tokens] = span.item.embeds
        out: Tensor = self.whole.generate(inputs_embeds=embeds, do_sample=False, max_new_tokens=max_tokens, eos_token_id=None)
        return out[0].tolist()


def shown(part: Shown) -> MediaItem:
    item = MediaItem("image", part.tokens)
    item.embeds = torch.randn(part.tokens, WIDTH, generator=torch.Generator().manual_seed(part.seed)) * 2
    item.set_hash(f"{part.seed:032x}")
    return item


@torch.no_grad()
def _stir(model: Any) -> None:
    """Random values for parameters and buffers that start as zeros or ones: norms, biases, corrections of routers."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for tensor in state.values():
        if tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
            tensor.add_(torch.randn_like(tensor) * 0.1)
