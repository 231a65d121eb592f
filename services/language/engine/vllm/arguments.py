"""What vLLM's engine is started with: our settings in its words, and the operator's own words beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from services.language.engine.interface import EngineStartError
from services.language.engine.options import EngineOptions
from services.language.engine.spare import cpu_pool
from services.language.engine.vllm.plugin import DIVIDED
from services.language.models.facts import LanguageFacts
from shared.checkpoint import pick_device

_SET_ELSEWHERE = {
    "model": "EPD_MODEL",
    "revision": "EPD_REVISION",
    "served_model_name": "EPD_SERVED_MODEL_NAME",
    "trust_remote_code": "EPD_TRUST_REMOTE_CODE",
    "dtype": "EPD_DTYPE",
    "block_size": "EPD_BLOCK_SIZE",
    "kv_cache_memory_bytes": "EPD_KV_CACHE_MEMORY",
    "max_num_seqs": "EPD_MAX_RUNNING",
    "max_num_batched_tokens": "EPD_MAX_BATCH_TOKENS",
    "max_num_queued_reqs": "EPD_MAX_QUEUE",
}
"""vLLM's arguments that our settings say."""

_CONTRACT = (
    *("tokenizer", "tokenizer_mode", "skip_tokenizer_init", "hf_overrides", "hf_config_path", "runner", "convert"),
    *("enable_mm_embeds", "limit_mm_per_prompt", "language_model_only", "mm_processor_cache_gb", "enable_prompt_embeds"),
    *("structured_outputs_config", "logprobs_mode", "max_logprobs", "generation_config", "override_generation_config"),
    *("disable_log_stats", "enable_log_requests", "stream_interval", "max_num_queued_tokens"),
    *("worker_cls", "worker_extension_cls"),
)
"""Those on which depends what the engine promises: its tokens, its seam, its limits, its failures."""

_CPU_BLOCK = 32
"""vLLM's attention on CPUs takes blocks of a multiple of so many tokens."""


def engine_args(options: EngineOptions, facts: LanguageFacts) -> AsyncEngineArgs:
    """vLLM's arguments. ``max_model_len`` is as long as the context, or as the pool holds.

    Raises:
        EngineStartError: the operator's arguments are none of vLLM's, or ours to say; or vLLM was built for another device.
    """
    check_names(options.vllm_args)
    device = _device(options.device)
    architectures = getattr(facts.config, "architectures", None) or []
    divided = [DIVIDED[name] for name in architectures if name in DIVIDED]
    args: dict[str, Any] = {
        "model": options.folder,
        "tokenizer": options.folder,
        "trust_remote_code": options.trusted,
        "dtype": str(facts.dtype).removeprefix("torch."),
        "block_size": options.block_size if device.type != "cpu" else -(-options.block_size // _CPU_BLOCK) * _CPU_BLOCK,
        "max_num_seqs": options.max_running,
        "max_num_batched_tokens": options.max_batch_tokens,
        "max_model_len": -1,
        # Of a CPU's memory vLLM would take most; on GPUs it decides, by its gpu_memory_utilization.
        "kv_cache_memory_bytes": options.kv_cache_memory or (cpu_pool() if device.type == "cpu" else None),
        # Embeddings alone: no vision weights are loaded, and nothing else would be taken.
        "limit_mm_per_prompt": dict.fromkeys(facts.family.modalities, 0) | {"image": 0, "video": 0},
        "enable_mm_embeds": True,
        # The language service keeps embeddings itself.
        "mm_processor_cache_gb": 0,
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": False},
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": facts.vocab_size,
        "worker_extension_cls": "services.language.engine.vllm.extension.WorkerExtension",
        "enable_prefix_caching": True,
        "enable_log_requests": False,
        "disable_log_stats": True,
    }
    if divided:
        args["hf_overrides"] = {"architectures": divided}
    if device.type == "cpu":
        args["worker_cls"] = "services.language.engine.vllm.seeds.SeededCpuWorker"
    return AsyncEngineArgs(**args | options.vllm_args)


def check_names(given: Mapping[str, Any]) -> None:
    """Raises EngineStartError where EPD_VLLM_ARGS has what is not vLLM's, or not the operator's to say."""
    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in given:
        if name in _SET_ELSEWHERE:
            raise EngineStartError(f"EPD_VLLM_ARGS has {name}, which is said by {_SET_ELSEWHERE[name]}")
        if name in _CONTRACT:
            raise EngineStartError(f"EPD_VLLM_ARGS has {name}, on which depends what the engine promises; it stays as it is")
        if name not in known:
            raise EngineStartError(f"EPD_VLLM_ARGS has {name}, which is none of vLLM's engine arguments")


def _device(wanted: str) -> torch.device:
    """The device that vLLM runs on, which its build decides.

    Raises:
        EngineStartError: another one is wanted.
    """
    device = pick_device(wanted)
    built_for = current_platform.device_type
    if device.type != built_for and wanted != "auto":
        raise EngineStartError(f"EPD_DEVICE is {wanted}, but this vLLM was built for {built_for}")
    if ":" in wanted:
        raise EngineStartError(f"EPD_DEVICE is {wanted}, and vLLM chooses GPUs by CUDA_VISIBLE_DEVICES: say {device.type}")
    return torch.device(built_for)
