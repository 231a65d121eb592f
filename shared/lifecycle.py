"""Running a service: logging, torch's threads, uvicorn."""

from __future__ import annotations

import contextlib
import ctypes
import gc

import torch
import uvicorn
from fastapi import FastAPI

from shared.settings import ServiceSettings
from shared.telemetry import configure_logging

# Names of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def prepare(settings: ServiceSettings) -> None:
    """Process-wide set-up, once, before anything is loaded."""
    prepare_process(settings.log_level, settings.log_format, settings.torch_threads())


def prepare_process(log_level: str, log_format: str, threads: int) -> None:
    """The same for any process of the pair."""
    configure_logging(log_level, log_format)
    torch.set_num_threads(threads)
    keep_freed_memory()


def settle() -> None:
    """Called once when all is loaded: what exists by now stays, so the garbage collector need not look at it ever again.

    A full collection over the modules of torch and transformers was measured to stop a process for 200 ms, in the middle of
    requests.
    """
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> None:
    """Tells glibc to keep what is freed, instead of giving it back to the system and asking for it again.

    A step frees and allocates the same megabytes as the one before; faulting their pages in anew was measured to take half of
    the time of batched decoding. Where the C library is another one, nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(parameter, 2**30)


def run(app: FastAPI, settings: ServiceSettings, port: int) -> None:
    """Serves until SIGTERM or SIGINT."""
    uvicorn.run(
        app,
        host=settings.host,
        port=port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=30,
    )
