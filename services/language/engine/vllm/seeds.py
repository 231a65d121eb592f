"""Requests with seeds on CPUs.

A request whose prompt is computed in several steps is sampled in each of them, and what comes of all but the last is thrown
away. vLLM then turns the request's random generator back; those of GPUs can be turned, and of those of CPUs vLLM dies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.worker.cpu_worker import CPUWorker


class SeededCpuWorker(CPUWorker):  # type: ignore[misc]
    """vLLM's worker for CPUs, except that a sample that is thrown away is drawn without the request's own generator, which so
    gives the same tokens whatever a request is batched with."""

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:
        runner = self.model_runner
        generators: dict[int, torch.Generator] = runner.input_batch.generators
        thrown_away = np.flatnonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs]).tolist()
        spared = {row: generators.pop(row) for row in thrown_away if row in generators}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(spared)
