"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable

from services.language.engine.interface import Engine
from services.language.engine.options import EngineName, EngineOptions
from services.language.engine.torch.engine import TorchEngine
from services.language.engine.vllm.engine import WANTED, VllmEngine, installed


def make_engine_of(name: EngineName) -> Callable[[EngineOptions], Engine]:
    """What makes the engine of this name.

    Raises:
        ValueError: it needs what is not installed.
    """
    if name == "vllm":
        if not installed():
            raise ValueError(WANTED)
        return VllmEngine
    return TorchEngine
