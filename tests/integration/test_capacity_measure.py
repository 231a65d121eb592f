"""Measuring the inputs of a plan at a real pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.loadtest.capacity.command import command
from services.loadtest.capacity.inputs import read
from services.loadtest.capacity.measure import Pair as Asked
from services.loadtest.capacity.measure import measure
from services.loadtest.capacity.model import predict
from tests.conftest import Pair
from tests.fake_encoder import LEVELS, WIDTH


def test_a_pair_tells_what_it_can_do(pair: Pair) -> None:
    found = measure(Asked(f"{pair.language.url}/v1"), alone=3, busy=4)
    assert 0 < found.encoder.seconds < 60
    assert 0 <= found.encoder.batch_gain < 1
    assert 0 < found.language.step_seconds < 60
    assert found.language.prefill_tokens_per_second > 1
    assert found.embeddings is not None
    assert found.embeddings.hidden_size == WIDTH * (1 + LEVELS), "all that the encoder sends of a token"
    assert found.embeddings.bytes_per_number == 4
    inputs = read(None, ["traffic.rate=1e-3", "traffic.tokens_per_picture=4"], found.tables())
    assert predict(inputs, 1, 1).ttft.mean > found.encoder.seconds


def test_what_was_measured_is_saved_and_read_again(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.loadtest.capacity.command.measure", lambda asked: measure(asked, alone=1, busy=1))
    saved = tmp_path / "pair.toml"
    asked = ["--measure", pair.language.url, "--encoder", pair.encoder.url, "--save", str(saved)]
    assert command([*asked, "--rate", "0.001", "--json"]) == 0
    used = json.loads(capsys.readouterr().out)["inputs"]
    again = read(saved, ["traffic.rate=0.001"])
    assert again.encoder.seconds == used["encoder"]["seconds"]
    assert again.language.step_seconds == used["language"]["step_seconds"]


def test_a_model_that_is_not_there_is_told(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--measure", pair.language.url, "--model", "another"]) == 2
    assert "has no model 'another'" in capsys.readouterr().err
