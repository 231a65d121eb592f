"""``python -m services.language check MODEL``: whether a checkpoint can be served, and what its language half takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.language.engine.interface import EngineStartError
from services.language.engine.options import EngineName
from services.language.engine.torch.runner import Runner
from services.language.engine.vllm.items import form_of
from services.language.models.facts import LanguageFacts
from shared.appraisal import CheckSettings, Kind, PoolSize, Served, run, served
from shared.checkpoint import pick_device, published_tensors, resolve

_BLOCK = 16


class LanguageCheck(CheckSettings):
    __doc__ = CheckSettings.__doc__

    model_config = SettingsConfigDict(cli_prog_name="python -m services.language check")

    engine: EngineName = Field("torch", description="The engine that it is to be served by.")


def check(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return run(LanguageCheck, arguments, appraise)


def appraise(settings: CheckSettings) -> Served:
    """What becomes of a checkpoint when the language service starts, without its weights.

    Raises:
        ValueError, OSError: it would not start.
    """
    folder = resolve(settings.model, settings.revision, settings.trust_remote_code, weights=False)
    facts = LanguageFacts(folder, settings.device, settings.dtype, settings.families, settings.trust_remote_code)
    tensors = published_tensors(settings.model, folder)
    sketch = facts.half.sketch(facts.dtype, tensors)
    kind = Kind(pick_device(settings.device), facts.dtype)
    assert isinstance(settings, LanguageCheck)
    if settings.engine == "vllm":
        _check_items(facts)
    pool = _pool(facts) if settings.engine == "torch" else None
    axes = 3 if facts.half.by_grid else 1
    return served(facts.family, facts.config, kind, sketch, "language", tensors, positions=axes, pool=pool)


def _check_items(facts: LanguageFacts) -> None:
    """Of vLLM only whether it takes the family's items is known without starting it.

    Raises:
        ValueError: it does not.
    """
    try:
        form_of(facts)
    except EngineStartError as error:
        raise ValueError(str(error)) from error


def _pool(facts: LanguageFacts) -> PoolSize:
    """What the engine would keep of each token.

    Raises:
        ValueError: the engine cannot run the model.
    """
    # Of experts in float32 torch knows no shapes; and what is kept has the same ones in any type.
    model = facts.half.empty().to(torch.bfloat16)
    try:
        runner = Runner(facts.half, model, torch.device("meta"), facts.dtype, _BLOCK)
    except EngineStartError as error:
        raise ValueError(str(error)) from error
    size = runner.bytes_per_token()
    return PoolSize(size, 2**30 // size)
