"""The plan: what a fleet does, how large it must be, and what the command says."""

from __future__ import annotations

import json
import math
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pages import write_section
from services.loadtest.capacity.command import command
from services.loadtest.capacity.inputs import Inputs, example, read
from services.loadtest.capacity.model import Prediction, predict
from services.loadtest.capacity.sizing import plan
from services.loadtest.capacity.stages import engine
from tests.processes import ROOT


def inputs(**changes: dict[str, Any]) -> Inputs:
    """Round figures: a picture takes 50 ms, an engine's step 10 ms."""
    tables: dict[str, dict[str, Any]] = {
        "traffic": {"rate": 2.0, "text_tokens": 100, "answer_tokens": 10, "tokens_per_picture": 100, "picture_bytes": 10_000},
        "encoder": {"seconds": 0.05},
        "language": {
            "request_seconds": 0.001,
            "prefill_tokens_per_second": 20_000,
            "step_seconds": 0.01,
            "step_seconds_per_answer": 0.0,
        },
        "embeddings": {"hidden_size": 1000, "deepstack_levels": 1, "bytes_per_number": 2},
        "network": {"bytes_per_second": 0, "seconds": 0},
    }
    for section, table in changes.items():
        tables.setdefault(section, {}).update(table)
    return Inputs.model_validate(tables)


def stage(found: Prediction, name: str) -> float:
    return next(each.utilisation for each in found.stages if each.name == name)


def test_without_load_a_request_takes_what_its_parts_take() -> None:
    found = predict(inputs(traffic={"rate": 1e-6}), 1, 1)
    assert found.ttft.mean == pytest.approx(0.001 + 0.05 + 0.01 + 200 / 20_000, rel=1e-3)
    assert found.ttft.p99 == pytest.approx(found.ttft.mean, rel=1e-2)
    assert found.tpot == pytest.approx(0.01, rel=1e-3)
    assert found.held.requests == pytest.approx(0, abs=1e-5)


def test_used_shares_and_limits_are_those_of_work() -> None:
    found = predict(inputs(traffic={"rate": 10.0}), 2, 1)
    assert stage(found, "encoders") == pytest.approx(10 * 0.05 / 2)
    assert found.limit == pytest.approx(40.0)
    assert found.busiest.name == "encoders"
    assert not predict(inputs(traffic={"rate": 40.0}), 2, 1).stable
    assert predict(inputs(traffic={"rate": 40.0}), 2, 1).ttft.mean == math.inf


def test_little_counts_what_is_in_work() -> None:
    found = predict(inputs(), 1, 1)
    assert found.embedding is not None
    assert found.held.pictures == pytest.approx(2 * found.embedding.mean, rel=0.02)
    assert found.held.answers == pytest.approx(2 * 10 * found.tpot)
    assert found.held.requests == pytest.approx(2 * (found.ttft.mean + 10 * found.tpot))


def test_bytes_on_the_wire() -> None:
    wire = predict(inputs(traffic={"rate": 10.0, "pictures": 2, "repeated": 0.25}), 3, 1).wire
    assert wire.per_picture == 100 * 1000 * 2 * 2
    assert wire.embeddings == pytest.approx(10 * 2 * 0.75 * 400_000)
    assert wire.pictures == pytest.approx(10 * 2 * 0.75 * 10_000)
    assert wire.encoder_link == pytest.approx(wire.embeddings / 3)


def test_a_narrow_link_runs_out_first() -> None:
    found = predict(inputs(network={"bytes_per_second": 1e6, "seconds": 0}), 1, 1)
    assert found.busiest.name == "links of language services"
    assert found.limit == pytest.approx(1e6 / (400_000 + 10_000))
    wide = predict(inputs(network={"bytes_per_second": 1e7, "seconds": 0}), 1, 1)
    assert wide.embedding is not None
    assert found.embedding is not None
    assert found.embedding.mean > wide.embedding.mean + 0.3


def test_known_pictures_cost_nothing_and_texts_see_no_encoder() -> None:
    known = predict(inputs(traffic={"rate": 10.0, "repeated": 1.0}), 1, 1)
    assert stage(known, "encoders") == 0
    assert known.ttft.mean < 0.04
    broken = predict(inputs(traffic={"rate": 60.0, "pictures": {"0": 1, "1": 2}}), 1, 1)
    assert broken.ttft_text is not None
    assert broken.ttft_pictures is not None
    assert (math.isfinite(broken.ttft_text.mean), broken.ttft_pictures.mean) == (True, math.inf)


def test_several_pictures_wait_for_the_slowest() -> None:
    one = predict(inputs(traffic={"rate": 4.0}), 4, 1).ttft.mean
    four = predict(inputs(traffic={"rate": 1.0, "pictures": 4}), 4, 1).ttft.mean
    assert four > one + 300 / 20_000, "beside what more tokens take"


def test_decoding_shares_the_engine_with_prompts() -> None:
    """By Little's law: a step of a + n b, of which 1 - p is left beside prompts, while n answers go on."""
    language = inputs(language={"step_seconds_per_answer": 0.001, "max_running": 10_000, "max_batch_tokens": 10**6}).language
    found = engine(language, rate=5.0, prompt_tokens=400, answer_tokens=50)
    left = 1 - 5 * 400 / 20_000
    assert found.tpot == pytest.approx(0.011 / (left - 5 * 50 * 0.001), rel=1e-3)
    assert found.running == pytest.approx(5 * 50 * found.tpot)


def test_an_engine_is_full_when_all_its_places_are_taken() -> None:
    language = inputs(language={"step_seconds_per_answer": 0.001, "max_running": 8}).language
    limit = engine(language, 1e-6, 100, 50).limit
    assert limit == pytest.approx(1 / (100 / 20_000 + 50 * 0.018 / 8))
    near = engine(language, 0.98 * limit, 100, 50)
    assert 7 < near.running <= 8
    assert near.slot.mean > 10 * engine(language, 0.5 * limit, 100, 50).slot.mean
    assert math.isinf(engine(language, limit, 100, 50).tpot)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.5, 60),
    st.floats(1.01, 2),
    st.integers(1, 5),
    st.integers(1, 4),
    st.floats(0, 0.9),
    st.integers(1, 3),
)
def test_more_load_is_never_better_and_more_encoders_never_worse(
    rate: float, more: float, encoders: int, languages: int, gain: float, pictures: int
) -> None:
    def at(rate: float, encoders: int) -> Prediction:
        asked = inputs(
            traffic={"rate": rate, "pictures": pictures},
            encoder={"batch_gain": gain},
            language={"step_seconds_per_answer": 0.0005},
        )
        return predict(asked, encoders, languages)

    one, busier, larger = at(rate, encoders), at(rate * more, encoders), at(rate, encoders + 1)
    assert busier.tpot >= one.tpot
    assert busier.ttft.mean >= one.ttft.mean * 0.995
    assert larger.ttft.mean <= one.ttft.mean * 1.005
    assert busier.busiest.utilisation > one.busiest.utilisation
    assert busier.limit == pytest.approx(one.limit)


@pytest.mark.parametrize("rate", [1.0, 10.0, 300.0, 5000.0])
def test_the_fleet_that_is_chosen_is_the_smallest_that_keeps_to_the_goals(rate: float) -> None:
    asked = inputs(traffic={"rate": rate}, goals={"utilisation": 0.6, "spare_encoders": 0})
    found = plan(asked).prediction
    assert all(each.utilisation <= 0.6 + 1e-9 for each in found.stages)
    if found.encoders > 1:
        assert stage(predict(asked, found.encoders - 1, found.languages), "encoders") > 0.6
    spare = plan(inputs(traffic={"rate": rate}, goals={"utilisation": 0.6, "spare_encoders": 2})).prediction
    assert spare.encoders == found.encoders + 2


def test_a_fleet_grows_until_the_first_token_is_early_enough() -> None:
    slow = plan(inputs(traffic={"rate": 20.0}, goals={"spare_encoders": 0})).prediction
    goal = {"spare_encoders": 0, "ttft_p95": 0.85 * slow.ttft.p95}
    fast = plan(inputs(traffic={"rate": 20.0}, goals=goal)).prediction
    assert fast.ttft.p95 <= goal["ttft_p95"]
    assert fast.encoders + fast.languages > slow.encoders + slow.languages
    with pytest.raises(ValueError, match="more of them do not help"):
        plan(inputs(goals={"ttft_p95": 0.01}))


def test_what_a_lost_encoder_costs() -> None:
    asked = inputs(
        traffic={"rate": 30.0}, failure={"crash_seconds": 0.1, "hang_seconds": 2.0}, fleet={"encoders": 3, "languages": 1}
    )
    loss = plan(asked).loss
    assert loss is not None
    assert loss.after is not None
    assert stage(loss.after, "encoders") == pytest.approx(0.75)
    assert loss.hang - loss.crash == pytest.approx(10 * 1.9)
    assert loss.hang_seconds == pytest.approx(loss.hang / (40 - 30))
    few = plan(asked.model_copy(update={"traffic": asked.traffic.model_copy(update={"rate": 45.0})})).loss
    assert few is not None
    assert few.after is not None
    assert (few.after.stable, few.hang_seconds) == (False, math.inf)
    alone = plan(inputs(fleet={"encoders": 1, "languages": 1})).loss
    assert alone is not None
    assert alone.after is None


def test_the_example_is_a_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command(["--example"]) == 0
    file = tmp_path / "pair.toml"
    file.write_text(capsys.readouterr().out)
    assert command([str(file)]) == 0
    said = capsys.readouterr().out
    for part in ("needed: ", "run out first", "first token, with pictures", "embeddings on the wire", "one encoder fewer"):
        assert part in said
    assert read(file) == Inputs.model_validate(tomllib.loads(example()))


def test_the_page_has_the_example_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """``UPDATE_DOCS=1`` writes it."""
    file = tmp_path / "pair.toml"
    file.write_text(example())
    assert command([str(file)]) == 0
    shown = ["```", "$ python -m services.loadtest plan pair.toml", *capsys.readouterr().out.splitlines(), "```"]
    page = ROOT / "docs" / "scaling.md"
    if os.environ.get("UPDATE_DOCS"):
        write_section(page, "example", shown)
    assert "\n".join(shown) in page.read_text(), "docs/scaling.md is old: UPDATE_DOCS=1 makes it anew"


def test_json_holds_the_whole_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--rate", "5", "--encoders", "2", "--languages", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["stable"], said["chosen"], said["prediction"]["encoders"]) == (True, False, 2)
    assert said["prediction"]["ttft"]["p99"] >= said["prediction"]["ttft"]["p95"] > 0
    assert said["inputs"]["traffic"]["rate"] == 5


def test_what_is_without_end_is_null_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--rate", "5000", "--encoders", "1", "--languages", "1"]
    assert command([*asked, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["stable"], said["prediction"]["ttft"]["mean"]) == (False, None)
    assert command(asked) == 1
    assert "are too many" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name a TOML file"),
        (["nowhere.toml"], "nowhere.toml"),
        (["--rate", "0"], "traffic.rate: Input should be greater than 0"),
        (["--rate", "nan"], "traffic.rate: Input should be a finite number"),
        (["--rate", "1", "--set", "speed=3"], "write it as traffic.rate=50"),
        (["--rate", "1", "--set", "encoder.seconds=2x"], "is no value"),
        (["--rate", "1", "--set", 'encoder.seconds="2x"'], "'2x' is no duration"),
        (["--rate", "1", "--set", "encoder.speed=2"], "encoder.speed: Extra inputs are not permitted"),
        (["--rate", "1", "--set", "encoder.seconds=0"], "must be more than 0"),
        (["--rate", "1", "--set", 'traffic.pictures={ "one" = 1 }'], "numbers of pictures and relative weights"),
        (["--rate", "1", "--set", 'traffic.pictures={ "1" = 0 }'], "one weight is more"),
        (["--rate", "1e9"], "more than 100000"),
        (["--rate", "1", "--set", 'goals.ttft_p95="1ms"'], "more of them do not help"),
        (["--measure", "http://127.0.0.1:9"], "http://127.0.0.1:9/v1/models cannot be had: "),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("no plan: ")
    assert told in said
    assert "Traceback" not in said


def test_a_file_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pair.toml"
    for text, told in (("rate = ", "is not TOML"), ("rate = 3", "is in no section")):
        file.write_text(text)
        assert command([str(file)]) == 2
        assert told in capsys.readouterr().err
