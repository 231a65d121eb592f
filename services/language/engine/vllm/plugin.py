"""What vLLM loads in each of its processes: the entry point ``vllm.general_plugins`` of this package names ``register``."""

from __future__ import annotations

DIVIDED = {
    "Qwen3VLForConditionalGeneration": "DividedQwen3VL",
    "Qwen3VLMoeForConditionalGeneration": "DividedQwen3VLMoe",
}
"""Architectures that vLLM runs divided only by a class of ours, and the name of that class, which is its architecture too."""


def register() -> None:
    """Makes our classes known to vLLM, without importing them yet, and has its processes rest while they wait. Once more does
    no harm."""
    from vllm import ModelRegistry

    from services.language.engine.vllm.waiting import rest_while_waiting

    rest_while_waiting()
    for name in DIVIDED.values():
        ModelRegistry.register_model(name, f"services.language.engine.vllm.deepstack:{name}")
