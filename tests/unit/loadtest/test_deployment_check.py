"""What is refused before any load, and how deployments are chosen and set up."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.loadtest.deployment import CannotDo, Choice, open_deployment
from services.loadtest.deployment.local import environment, flags
from services.loadtest.deployment.verbs import fault_of
from services.loadtest.scenario import Action, Scenario
from tests.processes import free_port


def scenario(*timeline: str) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "test",
            "title": "A test",
            "lasts": "60s",
            "traffic": {"rate": 1, "mix": {"text": 1}},
            "timeline": timeline,
            "pair": {"encoders": 2},
        }
    )


def refusal(line: str, choice: Choice) -> str:
    deployment = open_deployment(scenario(line), choice)
    with pytest.raises(CannotDo) as refused:
        deployment.check([Action.parse(line)])
    return str(refused.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1s kill encoder-3", "nothing here is called encoder-3; the parts are encoder-1, encoder-2, language"),
        ("1s start encoder-1 for 5s", "leave 'for' out"),
        ("1s kill encoder-1 for 0s", "longer than 0s"),
        ("1s kill encoder-1 hard=true", "kill has no option 'hard'"),
        ("1s slow encoder-1 latency=soon", "no duration"),
        ("1s disconnect encoder-1 by=magic", "by=network or by=iptables"),
        ("1s corrupt language", "language is no encoder"),
        ("1s disconnect language", "no network of its own"),
    ],
)
def test_what_a_pair_of_ones_own_cannot_do_is_refused_before_it_is_started(line: str, said: str, tmp_path: Path) -> None:
    message = refusal(line, Choice(logs=tmp_path))
    assert message.startswith(f"'{line.removeprefix('1s ')}' cannot be done: ")
    assert said in message
    with pytest.raises(CannotDo), open_deployment(scenario(line), Choice(logs=tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


def test_a_server_known_by_its_address_only_cannot_be_made_to_fail() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert "--encoder" in refusal("1s corrupt", Choice(target=url))
    assert "--docker" in refusal("1s kill encoder-1", Choice(target=url, encoders=(url,)))
    assert "nothing listens" in refusal("1s corrupt", Choice(target=url, encoders=(url,)))


def test_a_server_known_by_its_address_only_can_be_loaded() -> None:
    deployment = open_deployment(scenario(), Choice(target="http://127.0.0.1:1"))
    with deployment:
        deployment.check([])
        assert deployment.url == "http://127.0.0.1:1"
        assert deployment.encoders == ()


def test_encoders_without_a_server_are_refused() -> None:
    with pytest.raises(CannotDo, match="--target"):
        open_deployment(scenario(), Choice(encoders=("http://127.0.0.1:1",)))


def test_options_of_a_fault_are_json_durations_or_text() -> None:
    options = {"p": "0.5", "seconds": "200ms", "at": "publish", "value": "-inf", "match": '{"modality": "image"}'}
    assert fault_of("hang", options) == {
        "kind": "hang",
        "probability": 0.5,
        "seconds": 0.2,
        "at": "publish",
        "value": "-inf",
        "match": {"modality": "image"},
    }


def test_settings_are_flags_since_a_service_refuses_those_that_it_does_not_know() -> None:
    settings = {"embedding_cache_bytes": 0, "tracing": True, "ipc_pool_handle_cache": False}
    assert flags(settings) == ["--embedding-cache-bytes", "0", "--tracing", "--no-ipc-pool-handle-cache"]


def test_services_get_none_of_the_shells_settings_but_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EPD_EMBEDDING_TIMEOUT", "1")
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("EPD_MODEL", tmp_path.name)
    found = environment({"EPD_HOST": "127.0.0.1"})
    assert {name: value for name, value in found.items() if name.startswith("EPD_")} == {
        "EPD_MODEL": str(tmp_path),
        "EPD_THREADS": "1",
        "EPD_HOST": "127.0.0.1",
    }
