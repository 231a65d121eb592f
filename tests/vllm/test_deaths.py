"""What is killed or stopped by a signal, with vLLM as the engine: encoders, vLLM's own processes, the language service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.test_encoder_killed import test_a_client_that_hangs_up_frees_what_it_held, test_kill_and_return  # noqa: F401
from tests.chaos.test_engine_killed import check_a_death, engine_of
from tests.chaos.test_joining_and_leaving import test_a_language_service_drains, test_what_a_drain_has_no_time_for_is_told  # noqa: F401
from tests.processes import UNCACHED, Service, free_port, wait_for

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    """An encoder, which whoever kills it starts again, and a language service."""
    folder = tmp_path_factory.mktemp("killed")
    with (
        Service("encoder", folder, free_port(), **UNCACHED).start(wait=False) as encoder,
        Service("language", folder, encoders=encoder.url, **UNCACHED).start(wait=False) as language,
    ):
        language.wait_until_ready(encoders=1)
        yield encoder, language


def core_of(language: Service) -> int:
    """The process id of vLLM's engine core, which our worker starts; 0 while there is none."""
    if not (worker := engine_of(language)):
        return 0
    cores = [child.pid for child in psutil.Process(worker).children() if "EngineCore" in " ".join(child.cmdline())]
    return cores[0] if cores else 0


def runs(process: psutil.Process) -> bool:
    """Whether it does anything; the dead whom nobody has asked about don't."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(900)  # vLLM starts three times
def test_a_dead_engine_is_told_and_replaced_and_does_not_outlive_its_service(tmp_path: Path) -> None:
    with Service("language", tmp_path, encoders="").start() as language:
        check_a_death(language, engine_of)
        check_a_death(language, core_of)
        family = psutil.Process(language.process.pid).children(recursive=True)
        assert len(family) >= 3
        language.kill()
        wait_for(lambda: not any(map(runs, family)), 20, "the end of vLLM's processes")
