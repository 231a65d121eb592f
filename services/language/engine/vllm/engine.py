"""The vLLM engine as the language service sees it."""

from __future__ import annotations

import importlib.util
import json
import os

from services.language.engine.interface import EngineStartError
from services.language.engine.process import ProcessEngine
from services.language.engine.vllm.logs import configuration

WANTED = "EPD_ENGINE=vllm needs vLLM, which is not installed: pip install 'epd-pair[vllm]'"


class VllmEngine(ProcessEngine):
    """vLLM's async engine in a process of its own, which has vLLM's own processes below it."""

    worker = "services.language.engine.vllm.worker"
    patience = 10.0

    def environment(self) -> dict[str, str]:
        """What vLLM is to know before it is imported. Of what the service's own environment tells it, all stays that does not
        decide on what is promised."""
        if not installed():
            raise EngineStartError(WANTED)
        options = self._options
        logs = self._folder / "logging.json"
        logs.write_text(json.dumps(configuration(options.log_level, options.log_format, self._folder / "cause")))
        ours = {
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",  # the checkpoint is a folder here
            "VLLM_LOGGING_CONFIG_PATH": str(logs),
            "VLLM_COMPUTE_NANS_IN_LOGITS": "1",  # else a model whose numbers break goes on talking
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        }
        # Threads that are bound to cores are so for good, whatever else runs there.
        defaults = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(options.threads)}
        return {name: os.environ.get(name, value) for name, value in defaults.items()} | ours


def installed() -> bool:
    """Whether vLLM is there; it is not imported for that."""
    return importlib.util.find_spec("vllm") is not None
