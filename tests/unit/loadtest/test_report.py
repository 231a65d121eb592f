"""A report is one page that needs nobody else, a file from which the run can be judged again, and a suite for CI."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from junitparser import JUnitXml

from services.loadtest.columns import Columns
from services.loadtest.phases import phases
from services.loadtest.report import read, write
from services.loadtest.report.figures import by_code, by_kind, by_phase
from services.loadtest.report.series import Bins, open_at_once, ways
from services.loadtest.run import End, Generator, Kind, Run
from services.loadtest.statistics import p99_ratio, percentile
from services.loadtest.verdicts import judge
from services.loadtest.wording import duration, percent
from tests.unit.loadtest.runs import calm_run, crash_run, fault, record, refused, run, text

VOID = {"col", "meta", "link", "br", "img"}


class Page(HTMLParser):
    """What a page holds, by kind of element; elements must be closed in their order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [found["href"] or ""] if tag == "a" else []
        self.loads += [value or "" for name, value in attrs if name in ("src", "srcset") or (name == "href" and tag == "link")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] in ("script", "style") else self.words).append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(made: Run, folder: Path) -> Page:
    return Page(write(made, judge(made), folder).read_text())


def test_a_saved_run_is_read_back_as_it_was_and_judged_alike(tmp_path: Path) -> None:
    made = crash_run(honest=False)
    verdicts = judge(made)
    write(made, verdicts, tmp_path)
    again = read(tmp_path / "report.json")
    assert again == made
    assert judge(again) == verdicts
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["passed"] is False
    assert {each["name"]: each["holds"] for each in saved["verdicts"]} == {each.name: each.holds for each in verdicts}


def test_what_is_no_number_is_kept_too(tmp_path: Path) -> None:
    made = calm_run(generator=Generator(1, 0.0, math.nan, 0))
    write(made, judge(made), tmp_path)
    assert math.isnan(read(tmp_path / "report.json").generator.late_p99)


@pytest.mark.parametrize("content", ["", "{}", '{"format": "epd-loadtest-0"}', "<html>"])
def test_another_file_is_no_report(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(ValueError, match=r"is no report\.json of this tool"):
        read(tmp_path / "report.json")


def test_ci_gets_a_case_for_each_verdict_and_the_ids_of_offenders(tmp_path: Path) -> None:
    made = crash_run(honest=False)
    verdicts = judge(made)
    write(made, verdicts, tmp_path)
    (suite,) = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert suite.tests == len(verdicts)
    failures = {case.name: case.result[0] for case in suite if case.result}
    assert set(failures) == {verdict.name for verdict in verdicts if not verdict.holds}
    for verdict in verdicts:
        assert all(offender.id in failures[verdict.name].text for offender in verdict.offenders if not verdict.holds)


def test_odd_characters_of_a_foreign_server_harm_neither_file(tmp_path: Path) -> None:
    evil = '\x00\x1b</script><script>alert("&")</script>'
    bad = refused(20, detail=evil, code=evil, id=evil, answered_id="<b>")
    made = calm_run(model=evil, target=evil, notes=[evil])
    made = replace(made, records=[*made.records, bad], faults=[fault(10, 12, evil, error=evil)])
    found = page(made, tmp_path)
    assert "alert" in found.said
    assert not any("<" in script for script in found.scripts if script.startswith('{"data"'))
    assert (tmp_path / "report.html").read_text().count("<script") == 2 + sum("-data" in each for each in found.ids)
    assert "alert" in JUnitXml.fromfile(str(tmp_path / "junit.xml")).tostring().decode()
    assert read(tmp_path / "report.json") == made


def test_the_page_loads_nothing_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    found = page(crash_run(honest=False), tmp_path)
    assert found.loads == ["data:,"]
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    assert len(found.ids) == len(set(found.ids))
    packed = max(found.scripts, key=len)
    assert not re.search(r"https?://", "".join(script for script in found.scripts if script is not packed))
    assert (tmp_path / "report.html").stat().st_size < 2_500_000


def test_the_page_says_what_failed_and_which_requests_to_look_at(tmp_path: Path) -> None:
    made = crash_run(honest=False)
    found = page(made, tmp_path)
    assert "Failed" in found.said
    for verdict in judge(made):
        assert verdict.measured in found.said
        assert all(offender.id in found.said for offender in verdict.offenders)
    assert "said “A red circle.” instead of “A blue square at the top left.”" in found.said
    assert "Passed All 13 promises hold." in page(crash_run(), tmp_path).said


@pytest.mark.parametrize("made", [run([]), run([record(1)]), calm_run(samples=[]), run([text(1)], [fault(1, None)])])
def test_a_run_with_next_to_nothing_has_a_page_too(tmp_path: Path, made: Run) -> None:
    assert "What ran" in page(made, tmp_path).said


def test_what_can_be_told_apart_by_numbers_is_and_more_is_not(tmp_path: Path) -> None:
    few, many = ([fault(at, at + 0.5) for at in np.linspace(1, 38, number)] for number in (3, 30))
    assert "with the same numbers" in page(calm_run(faults=few), tmp_path).said
    assert "numbers" not in page(calm_run(faults=many), tmp_path).said.split("How to read")[1].split("Answers")[0]


def test_a_single_kind_of_answer_is_named_too(tmp_path: Path) -> None:
    found = page(run([refused(20)]), tmp_path)
    (answers,) = [json.loads(script) for script in found.scripts if "answers a second" in script]
    assert [each["name"] for each in answers["data"]] == ["503 encoder_failed (1)"]
    assert answers["layout"]["showlegend"]


def test_a_report_takes_the_place_of_an_earlier_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    for made in (run([record(1)]), calm_run()):
        write(made, judge(made), tmp_path / "a" / "b")
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["junit.xml", "report.html", "report.json"]
    assert read(tmp_path / "a" / "b" / "report.json") == calm_run()


def test_figures_count_each_request_once() -> None:
    left = record(12, end=End.HUNG_UP, status=0, code="", first=None)
    given_up = record(11, 12, end=End.UNANSWERED, status=0, code="", first=None)
    event = record(11.5, code="encoder_lost")
    records = [
        text(1),
        record(2),
        record(10.5, kind=Kind.BROKEN),
        refused(11),
        refused(11.2, code="odd"),
        event,
        given_up,
        left,
    ]
    made = run(records, [fault(10, 14)])
    columns = Columns.of(made.records)
    calm, killed, after, again = by_phase(columns, phases(made))
    assert (calm.figures.requests, calm.figures.ok, calm.rate) == (2, 2, 0.2)
    figures = killed.figures
    assert (figures.requests, figures.ok, figures.client_errors, figures.unanswered, figures.hung_up) == (6, 1, 1, 1, 1)
    assert (figures.refusals, figures.others) == ({"encoder_failed": 1, "odd": 1}, 1)
    assert after.figures.requests == again.figures.requests == 0
    assert sum(row.count for row in by_code(columns)) == len(records) - 1
    assert sum(row.figures.requests for row in by_kind(columns)) == len(records)
    stacked = ways(columns)
    assert sum(mask.sum() for mask in stacked.values()) == len(records) - 1


def test_very_many_phases_are_told_by_name() -> None:
    made = run([record(at) for at in range(990)], [fault(at, at + 10) for at in range(10, 970, 30)], seconds=1000.0)
    rows = by_phase(Columns.of(made.records), phases(made))
    assert [(row.name, row.times) for row in rows] == [
        ("calm", 1),
        ("kill encoder-1", 32),
        ("after kill encoder-1", 32),
        ("calm again", 32),
    ]
    assert sum(row.figures.requests for row in rows) == 990


def test_open_requests_are_those_sent_and_not_yet_ended() -> None:
    columns = Columns.of([record(0.1, 2.3), record(1.2, 0.2), record(1.3, 0.4), record(3.5, 0.1)])
    assert open_at_once(columns, Bins(1.0, 5)).tolist() == [1, 3, 1, 1, 0]


def test_percentiles_are_values_that_were_measured() -> None:
    values = np.arange(1.0, 101.0)
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile(np.array([3.0]), 0.99) == 3
    assert math.isnan(percentile(np.array([]), 0.5))


def test_a_ratio_is_hardly_chance_where_all_is_slower_and_may_be_where_one_moment_is() -> None:
    rng = np.random.default_rng(3)
    at = np.sort(rng.uniform(0, 60, 3000))
    values, base = rng.lognormal(0, 0.3, 3000), rng.lognormal(0, 0.3, 3000)
    assert p99_ratio(values, at, base, at, 1.2).chance > 0.9
    assert p99_ratio(values * 1.6, at, base, at, 1.2).chance < 0.01
    together = np.where((at > 30) & (at < 32), values * 3, values)
    bunched, shuffled = (p99_ratio(each, at, base, at, 1.2) for each in (together, rng.permutation(together)))
    assert bunched.value == shuffled.value > 1.2
    assert bunched.chance > 0.1
    assert shuffled.chance < 0.01


def test_a_short_calm_makes_no_ratio_certain() -> None:
    rng = np.random.default_rng(4)
    shown = 0
    for _ in range(60):
        at, base_at = np.sort(rng.uniform(20, 80, 600)), np.sort(rng.uniform(0, 10, 80))
        ratio = p99_ratio(rng.lognormal(0, 0.6, 600), at, rng.lognormal(0, 0.6, 80), base_at, 1.0)
        shown += ratio.value > 1 and ratio.chance <= 0.05
    assert shown <= 8


def test_figures_are_written_as_people_read_them() -> None:
    written = [duration(each) for each in (None, 0, 0.0004, 0.0123, 1.234, 12.34, 125, 7500)]
    assert written == ["–", "0 ms", "0.4 ms", "12 ms", "1.23 s", "12.3 s", "2:05 min", "2:05:00 h"]
    assert [percent(1, 1), percent(9999, 10000), percent(99999, 100000), percent(0, 0)] == ["100 %", "99.99 %", "99.99 %", "–"]
