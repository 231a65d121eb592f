"""Scenarios: what is written is what happens, and what is written wrongly is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.loadtest.deployment.verbs import UNDONE_BY, VERBS
from services.loadtest.scenario import Action, Mix, Step, Traffic, load, shipped

PAGE = Path(__file__).parents[3] / "docs" / "load-testing.md"

SHIPPED = {
    "calm",
    "encoder-crash",
    "encoder-hang",
    "rolling-restart",
    "partition",
    "slow-network",
    "corruption",
    "overload",
    "all-encoders-down",
    "soak",
    "replica-crash",
}

LEAST = """
title = "A test"
lasts = "10s"
traffic = { rate = 5, mix = { text = 1 } }
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_eleven_scenarios_come_with_the_tool_and_can_be_read() -> None:
    assert set(shipped()) == SHIPPED
    for name in SHIPPED:
        assert load(name).name == name


@pytest.mark.parametrize("name", sorted(SHIPPED - {"calm"}))
def test_each_begins_calmly_so_that_there_is_something_to_compare_with(name: str) -> None:
    scenario = load(name)
    assert min([action.at for action in scenario.actions()] + [step.at for step in scenario.traffic.steps]) >= 8


def test_a_file_of_ones_own_is_known_by_its_name(tmp_path: Path) -> None:
    scenario = load(written(tmp_path, LEAST))
    assert (scenario.name, scenario.lasts, scenario.timeline) == ("mine", 10.0, ())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "10s kill encoder-1",
            Action(at=10, line="kill encoder-1", verb="kill", targets=("encoder-1",), options={}, lasts=None),
        ),
        (
            "1.5s  corrupt  encoder-* probability=0.1  for 500ms",
            Action(
                at=1.5,
                line="corrupt encoder-* probability=0.1 for 500ms",
                verb="corrupt",
                targets=("encoder-*",),
                options={"probability": "0.1"},
                lasts=0.5,
            ),
        ),
        ("2m hang", Action(at=120, line="hang", verb="hang", targets=("encoder-*",), options={}, lasts=None)),
    ],
)
def test_a_line_of_the_timeline_is_a_time_an_action_and_to_whom(line: str, wanted: Action) -> None:
    assert Action.parse(line) == wanted


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('lasts = "soon"', "lasts: 'soon' is no duration; write it as 10s, 200ms, 3m or 2h"),
        ('lasts = "10s"\ntimeline = ["kill encoder-1"]', "'kill' is no duration"),
        ('lasts = "10s"\ntimeline = ["5s"]', "'5s' needs a time and an action, as in '10s kill encoder-1'"),
        ('lasts = "10s"\ntimeline = ["5s hang for"]', "must end with its duration, as in 'for 5s'"),
        ('lasts = "10s"\ntimeline = ["12s kill encoder-1"]', "'kill encoder-1' comes after the end; the scenario lasts 10 s"),
        ('lasts = "10s"\nrepeat = "4s"\ntimeline = ["5s hang"]', "'hang' comes after the end; a round lasts 4 s"),
        ('lasts = "10s"\nrepeat = "20s"\ntimeline = ["12s hang"]', "'hang' comes after the end; a round lasts 10 s"),
        ('lasts = "10s"\nspeed = 3', "speed: Extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_with_a_scenario_is_told(tmp_path: Path, change: str, told: str) -> None:
    with pytest.raises(ValueError, match="is no scenario") as raised:
        load(written(tmp_path, LEAST.replace('lasts = "10s"', change)))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("traffic", "told"),
    [
        ("{ mix = { text = 1 } }", "give either rate (requests a second) or users"),
        ("{ rate = 1, users = 2, mix = { text = 1 } }", "give either rate (requests a second) or users"),
        ("{ rate = 1, mix = {} }", "the mix is empty"),
        ("{ rate = 1, mix = { video = 1 } }", "traffic.mix.video: Extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_with_its_traffic_is_told(tmp_path: Path, traffic: str, told: str) -> None:
    with pytest.raises(ValueError, match="is no scenario") as raised:
        load(written(tmp_path, LEAST.replace("{ rate = 5, mix = { text = 1 } }", traffic)))
    assert told in str(raised.value)


def test_a_name_that_nobody_has_is_told_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"there is no scenario 'clam'.*calm, corruption"):
        load("clam")


def test_what_is_no_toml_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not TOML"):
        load(written(tmp_path, "title = "))


def test_a_timeline_is_repeated_as_often_as_it_fits(tmp_path: Path) -> None:
    scenario = load(
        written(tmp_path, LEAST.replace('lasts = "10s"', 'lasts = "10s"\nrepeat = "4s"\ntimeline = ["1s hang for 1s"]'))
    )
    assert [action.at for action in scenario.actions()] == [1.0, 5.0]
    assert [action.at for action in scenario.lasting(20).actions()] == [1.0, 5.0, 9.0, 13.0, 17.0]


def test_a_scenario_cannot_end_before_its_timeline() -> None:
    assert load("encoder-crash").lasting(20).lasts == 20
    with pytest.raises(ValueError, match="'kill encoder-2' at 14 s: it must last longer"):
        load("encoder-crash").lasting(11)
    with pytest.raises(ValueError, match="must last longer"):
        load("soak").lasting(30)  # not even one round


def test_the_example_of_the_page_is_a_scenario(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    scenario = load(written(tmp_path, example))
    assert [action.verb for action in scenario.actions()] == ["kill", "start", "corrupt"]


def test_the_page_has_every_verb_and_what_undoes_it() -> None:
    table = PAGE.read_text().split("| verb |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)?", table, re.MULTILINE)
    assert {verb: opposite for verb, opposite in rows if opposite} == UNDONE_BY
    assert {name for row in rows for name in row if name} == VERBS - {"clear"}


@pytest.mark.parametrize(
    ("at", "stepped", "ramped"),
    [(0, 10, 10), (5, 10, 20), (9.9, 10, 29.8), (10, 30, 30), (15, 30, 17.5), (20, 5, 5), (99, 5, 5)],
)
def test_the_load_goes_from_step_to_step_at_once_or_evenly(at: float, stepped: float, ramped: float) -> None:
    steps = (Step(at=20, load=5), Step(at=10, load=30))
    for ramp, wanted in ((False, stepped), (True, ramped)):
        assert Traffic(rate=10, steps=steps, ramp=ramp, mix=Mix(text=1)).load_at(at) == pytest.approx(wanted)
