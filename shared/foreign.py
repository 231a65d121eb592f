"""Code that a checkpoint brings along: never run unless that was asked for, and not where transformers has code of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_class_from_dynamic_module

_ASKS = "trust_remote_code"
_FOREIGN = "transformers_modules."
_MODELS = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForCausalLM")


def read_part(auto: Any, folder: Path, trusted: bool = False, **options: Any) -> Any:
    """What ``auto``, one of transformers' ``Auto…`` classes, makes of a checkpoint.

    Raises:
        ValueError: only code of the checkpoint can read it, and that is not ``trusted``; or the checkpoint is broken.
        OSError: a file cannot be read.
    """
    try:
        return auto.from_pretrained(folder, trust_remote_code=False, **options)
    except ValueError as error:
        if _ASKS not in str(error):
            raise
        if not trusted:
            raise ValueError(
                f"{folder} has Python code of its own for what {auto.__name__} reads, and transformers has none; "
                "EPD_TRUST_REMOTE_CODE=true runs it, as part of this service"
            ) from error
    return auto.from_pretrained(folder, trust_remote_code=True, **options)


def foreign_model(config: Any) -> Any | None:
    """The model class that a checkpoint brings along, if its configuration's class is from there too, and so was trusted."""
    if not type(config).__module__.startswith(_FOREIGN):
        return None
    named: dict[str, str] = getattr(config, "auto_map", None) or {}
    found = next((named[name] for name in _MODELS if name in named), None)
    return found and get_class_from_dynamic_module(found, config.name_or_path)
