"""Which engine is made, and that one which is not installed is asked for in vain with a sentence."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from services.language.app import create_app, engine_options
from services.language.check import check
from services.language.engine.choice import make_engine_of
from services.language.engine.interface import EngineStartError
from services.language.engine.options import EngineOptions
from services.language.engine.torch.engine import TorchEngine
from services.language.engine.vllm.engine import VllmEngine
from services.language.settings import LanguageSettings
from tests.families import make
from tests.processes import DEMO_MODEL


@pytest.fixture
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "vllm" else found(name, *more))


def test_the_torch_engine_is_the_usual_one(without_vllm: None) -> None:
    assert make_engine_of(LanguageSettings().engine) is TorchEngine


def test_an_engine_that_is_not_installed_is_refused_before_anything_starts(without_vllm: None) -> None:
    with pytest.raises(ValueError, match=r"EPD_ENGINE=vllm needs vLLM.*pip install"):
        create_app(LanguageSettings(engine="vllm"))

    async def start() -> None:
        engine = VllmEngine(EngineOptions(str(DEMO_MODEL)))
        try:
            await engine.start()
        finally:
            await engine.stop()

    with pytest.raises(EngineStartError, match="EPD_ENGINE=vllm needs vLLM"):
        asyncio.run(start())


def test_arguments_of_vllm_come_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_ENGINE", "vllm")
    monkeypatch.setenv("EPD_VLLM_ARGS", '{"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}')
    options = engine_options(LanguageSettings(), DEMO_MODEL)
    assert options.vllm_args == {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}


def test_a_check_tells_what_the_engine_does_not_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check([str(DEMO_MODEL), "--engine", "vllm"]) == 0
    assert "key/value pool" not in capsys.readouterr().out  # vLLM's is known to vLLM only
    assert check([str(make("gemma3", tmp_path)), "--engine", "vllm"]) == 1
    assert "the vllm engine does not serve the family gemma3" in capsys.readouterr().out
