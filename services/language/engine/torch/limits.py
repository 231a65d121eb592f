"""Decoders that the paged engine would get wrong in silence, as far as their configuration tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.language.engine.interface import EngineStartError

_LAYERS = {"full_attention", "sliding_attention"}
_STRETCHING = {"dynamic", "longrope"}


def check_decoder(name: str, config: Any) -> None:
    """``config`` is the decoder's own.

    Raises:
        EngineStartError: it has layers that are more than attention over keys and values in a window, or rotary positions that
            are turned anew with the length of what is computed at once: with a batch, one sequence would turn another's.
    """
    foreign = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYERS)
    if foreign:
        raise EngineStartError(
            f"{name} cannot run on the paged engine: it has layers of the kind {' and '.join(foreign)}, "
            "and the engine keeps keys and values only"
        )
    stretching = _STRETCHING.intersection(_rope_types(getattr(config, "rope_parameters", None) or {}))
    if stretching:
        raise EngineStartError(
            f"{name} cannot run on the paged engine: its rotary positions are of the type {stretching.pop()}, "
            "which depends on the longest sequence of a batch"
        )


def _rope_types(parameters: dict[str, Any]) -> Iterator[str]:
    """The types in a configuration's rotary parameters; some families have them for each kind of layer."""
    for name, value in parameters.items():
        if isinstance(value, dict):
            yield from _rope_types(value)
        elif name == "rope_type":
            yield value
