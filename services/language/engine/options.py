"""How an engine runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

EngineName = Literal["torch", "vllm"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """``kv_cache_memory`` is in bytes, 0 for as much as is useful and there; ``folder`` is the checkpoint's. ``families`` names
    modules with families from elsewhere; ``trusted`` lets code of the checkpoint's own run. ``max_queue`` and
    ``max_embedding_bytes`` bound what all requests together, running or waiting, count and hold. ``vllm_args`` are vLLM's own
    engine arguments by name, for that engine only."""

    folder: str
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    block_size: int = 16
    kv_cache_memory: int = 0
    max_running: int = 64
    max_batch_tokens: int = 1024
    max_queue: int = 1024
    max_embedding_bytes: int = 2**31
    families: str = ""
    trusted: bool = False
    vllm_args: dict[str, Any] = field(default_factory=dict)
    log_level: str = "info"
    log_format: str = "text"
