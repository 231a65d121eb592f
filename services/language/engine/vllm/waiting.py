"""How vLLM's processes wait for each other on CPUs."""

from __future__ import annotations

import time

_REST = 2e-5
"""Seconds; far less than a step takes, and the system makes some 70 microseconds of it."""


def rest_while_waiting() -> None:
    """Makes them sleep for a moment where vLLM spins.

    vLLM's engine core waits for its worker by giving its turn up and taking it back at once, which hardly ever leaves Python's
    lock to the thread beside it that sends tokens on: they would come in bursts, seconds late, and so would cancellations. The
    cores that spinning takes are the worker's, too. On GPUs a single worker is in the core's own process, and nothing waits so.
    """
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        shm_broadcast.sched_yield = _rest


def _rest() -> None:
    time.sleep(_REST)
