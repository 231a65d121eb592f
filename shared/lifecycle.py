"""Running a service: logging, torch's threads, uvicorn."""

from __future__ import annotations

import torch
import uvicorn
from fastapi import FastAPI

from shared.settings import ServiceSettings
from shared.telemetry import configure_logging


def prepare(settings: ServiceSettings) -> None:
    """Process-wide set-up, once, before anything is loaded."""
    configure_logging(settings.log_level, settings.log_format)
    torch.set_num_threads(settings.torch_threads())


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
