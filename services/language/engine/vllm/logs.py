"""The logs of vLLM's processes: one line a record, as ours; and the first failure kept, to tell why it did not start."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from shared.telemetry import configure_logging

_LONGEST = 500


def configuration(level: str, log_format: str, cause: Path) -> dict[str, Any]:
    """What ``VLLM_LOGGING_CONFIG_PATH`` has to say, for the standard library's ``dictConfig``: each process that imports vLLM
    writes its records as ours does, and the first failure of any of them into the file ``cause``."""
    module = __name__
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {
            "ours": {"()": f"{module}.our_handler", "log_level": level, "log_format": log_format},
            "cause": {"()": f"{module}.FirstCause", "path": str(cause)},
        },
        "loggers": {"vllm": {"handlers": ["ours", "cause"], "level": level.upper(), "propagate": False}},
    }


def our_handler(log_level: str, log_format: str) -> logging.Handler:
    """Sets this process's logging up and returns the handler that writes."""
    configure_logging(log_level, log_format)
    return logging.getLogger().handlers[0]


class FirstCause(logging.Handler):
    """Writes what the first exception says that is logged as an error into a file, which processes share; later ones follow
    from it."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            with suppress(OSError), open(self._path, "x", encoding="utf-8") as file:
                file.write(" ".join(str(error).split())[:_LONGEST] or type(error).__name__)
