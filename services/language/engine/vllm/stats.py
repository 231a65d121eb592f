"""How busy vLLM's engine is, as it tells with each step."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from services.language.engine.interface import Load


class Meter(StatLoggerBase):  # type: ignore[misc]
    """Adds up what one or several engine cores (data parallel ranks) tell."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:  # noqa: ARG002
        self._config = vllm_config
        self._cores: dict[int, SchedulerStats] = {}
        self._asked = self._found = self._preemptions = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,  # noqa: ARG002
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            self._cores[engine_idx] = scheduler_stats
            prefixes = scheduler_stats.prefix_cache_stats
            self._asked += prefixes.queries
            self._found += prefixes.hits
        if iteration_stats is not None:
            self._preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """Nothing is told before the first step."""

    def load(self, busy: bool) -> Load:
        """The latest of all cores together. Where they are not ``busy`` nothing runs: that a sequence was given up is told with
        the next step, and then there is none."""
        told = list(self._cores.values()) if busy else []
        blocks: int = self._config.cache_config.num_gpu_blocks or 0  # known once the cores run
        usage = sum(stats.kv_cache_usage for stats in told) / max(1, len(told))
        return Load(
            running=sum(stats.num_running_reqs for stats in told),
            waiting=sum(stats.num_waiting_reqs + stats.num_skipped_waiting_reqs for stats in told),
            blocks_used=round(usage * blocks),
            blocks_total=blocks,
            prefix_tokens_asked=self._asked,
            prefix_tokens_found=self._found,
            preemptions=self._preemptions,
        )
