"""Starts vLLM's async engine, which takes its processes, its memory and the weights."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import zmq.asyncio
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.encoder_budget import MultiModalBudget
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import PrometheusStatLogger

from services.language.engine.messages import Ready
from services.language.engine.options import EngineOptions
from services.language.engine.vllm.arguments import engine_args
from services.language.engine.vllm.items import Form
from services.language.engine.vllm.serving import Serving
from services.language.engine.vllm.stats import Meter
from services.language.models.facts import LanguageFacts


@dataclass(frozen=True, slots=True)
class Started:
    """vLLM's engine, what serves requests by it, and what the service is told of it."""

    llm: AsyncLLM
    serving: Serving
    ready: Ready


async def launch(options: EngineOptions, facts: LanguageFacts, form: Form, socket: zmq.asyncio.Socket) -> Started:
    """Returns when vLLM takes requests; blocks meanwhile.

    Raises:
        EngineStartError, and what vLLM raises: it cannot be served.
    """
    config = engine_args(options, facts).create_engine_config()
    meter = Meter(config)
    llm = AsyncLLM.from_vllm_config(config, stat_loggers=[lambda *_, **__: meter], disable_log_stats=True)
    try:
        _share_the_loop(llm)
        # It was counted before the context was fitted to the pool; an item that only that count has room for would wait on.
        budget = MultiModalBudget(llm.vllm_config, MULTIMODAL_REGISTRY)
        llm.input_processor.mm_encoder_cache_size = budget.encoder_cache_size
        counted: dict[str, int] = {}
        for held in await llm.collective_rpc("count_parameters"):
            counted = {name: counted.get(name, 0) + held.get(name, 0) for name in counted | held}
        return Started(llm, Serving(llm, socket, form, facts, meter), Ready(counted, llm.model_config.max_model_len))
    except BaseException:
        llm.shutdown()
        raise


def _share_the_loop(llm: AsyncLLM) -> None:
    """Where a model's steps are about as short as vLLM takes to hand one's tokens out, the task that does so always finds the
    next and never lets go of the loop: tokens would travel in bursts, and cancellations wait for them. So it yields each time,
    and writes no metrics that nobody reads, which is most of what it does."""
    told = llm.logger_manager
    told.stat_loggers = [each for each in told.stat_loggers if not isinstance(each, PrometheusStatLogger)]
    next_outputs = llm.engine_core.get_output_async

    async def yielding() -> Any:
        await asyncio.sleep(0)
        return await next_outputs()

    llm.engine_core.get_output_async = yielding
