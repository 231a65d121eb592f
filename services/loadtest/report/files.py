"""A report for machines: JSON from which a run can be judged again, and JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from junitparser import Failure, JUnitXml, TestCase, TestSuite
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_serializer

from services.loadtest.run import Record, Run
from services.loadtest.verdicts import Verdict, passed

CONTROL = {code: "�" for code in range(32) if chr(code) not in "\t\n\r"} | {0xFFFE: "�", 0xFFFF: "�"}
"""What XML cannot hold."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict in short. ``offenders`` are the ids of requests."""

    name: str
    promise: str
    holds: bool
    measured: str
    bound: str
    detail: str
    offenders: tuple[str, ...]


class Saved(BaseModel):
    """What ``report.json`` holds. The records are beside their run, and leave out what they have in common with most."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    format: Literal["epd-loadtest-1"] = "epd-loadtest-1"
    passed: bool
    verdicts: list[Outcome]
    run: Run
    records: list[Record]

    @field_serializer("records")
    def _short(self, records: list[Record]) -> Any:
        return TypeAdapter(list[Record]).dump_python(records, mode="json", exclude_defaults=True)


def to_json(run: Run, verdicts: Sequence[Verdict]) -> str:
    """The whole run and its verdicts."""
    outcomes = [
        Outcome(
            name=verdict.name,
            promise=verdict.promise,
            holds=verdict.holds,
            measured=verdict.measured,
            bound=verdict.bound,
            detail=verdict.detail,
            offenders=tuple(record.id for record in verdict.offenders),
        )
        for verdict in verdicts
    ]
    saved = Saved(passed=passed(verdicts), verdicts=outcomes, run=replace(run, records=[]), records=run.records)
    return saved.model_dump_json()


def read(path: Path) -> Run:
    """The run that a ``report.json`` holds, to be judged or reported again.

    Raises:
        ValueError: the file is no such report, or another version's.
        OSError: it cannot be read.
    """
    try:
        saved = Saved.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path} is no report.json of this tool: {where}{': ' if where else ''}{first['msg']}") from error
    return replace(saved.run, records=saved.records)


def to_junit(run: Run, verdicts: Sequence[Verdict]) -> bytes:
    """A test case for each verdict; those that fail name their offenders."""
    suite = TestSuite(_clean(f"loadtest {run.scenario.name}"))
    suite.timestamp = run.began
    for name, value in (("target", run.target), ("model", run.model), ("requests", f"{len(run.records)}")):
        suite.add_property(name, _clean(value))
    for verdict in verdicts:
        case = TestCase(verdict.name, classname=_clean(f"loadtest.{run.scenario.name}"), time=0.0)
        said = f"{verdict.promise} Bound: {verdict.bound}. Measured: {verdict.measured}. {verdict.detail}".strip()
        if verdict.holds:
            case.system_out = _clean(said)
        else:
            failure = Failure(_clean(f"{verdict.promise} {verdict.measured} (bound: {verdict.bound})"), "verdict")
            failure.text = _clean("\n".join([said, *(_line(record) for record in verdict.offenders)]))
            case.result = [failure]
        suite.add_testcase(case)
    suite.time = run.seconds
    xml = JUnitXml("loadtest")
    xml.add_testsuite(suite)
    return bytes(xml.tostring())  # type: ignore[no-untyped-call]


def _line(record: Record) -> str:
    ended = f"{record.end} {record.status} {record.code}".strip()
    return f"{record.id} ({record.kind}, sent at {record.sent:.3f} s, {record.seconds:.3f} s): {ended} {record.detail}".strip()


def _clean(text: str) -> str:
    return text.translate(CONTROL)
