"""The HTML page: one file that opens without a network."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from services.loadtest.columns import Columns
from services.loadtest.phases import Phase, phases
from services.loadtest.report.canvas import Plot
from services.loadtest.report.figures import Figures, by_code, by_kind, by_phase
from services.loadtest.report.plots import plots
from services.loadtest.run import Run
from services.loadtest.verdicts import Verdict, passed
from services.loadtest.verdicts.verdict import MOST_OFFENDERS
from services.loadtest.wording import duration, many, percent


def page(run: Run, verdicts: Sequence[Verdict]) -> str:
    """The whole report as HTML, with all that it needs inside."""
    columns = Columns.of(run.records)
    everything = columns.sent == columns.sent
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "clock": _clock, "cell": _cell}
    environment.globals |= {"percent": percent, "many": many}
    failed = [verdict for verdict in verdicts if not verdict.holds]
    cut = phases(run)
    return environment.get_template("page.html.j2").render(
        run=run,
        scenario=run.scenario,
        passed=passed(verdicts),
        failed=failed,
        verdicts=[*failed, *(verdict for verdict in verdicts if verdict.holds)],
        total=Figures.of(columns, everything),
        phases=by_phase(columns, cut),
        codes=by_code(columns),
        kinds=by_kind(columns),
        plots=[(plot, _embedded(plot)) for plot in plots(run, columns)],
        plotly=Markup(_packed(get_plotlyjs())),
        slowest=columns.pick(columns.due & columns.answered, most=MOST_OFFENDERS),
        most=MOST_OFFENDERS,
        offending=[verdict for verdict in verdicts if verdict.offenders],
        phase_at=lambda at: _phase_at(cut, at),
        source=run.scenario.model_dump_json(indent=2, exclude={"about"}),
    )


def _phase_at(cut: Sequence[Phase], at: float) -> str:
    return next((phase.name for phase in reversed(cut) if at >= phase.began), "")


def _embedded(plot: Plot) -> Markup:
    """The figure as JSON, in which plotly leaves no ``<`` that could end the script element it stands in."""
    return Markup(plot.figure.to_json())


def _packed(script: str) -> str:
    """A script as base64 of gzip, which is a third of its size; browsers can unpack it."""
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()


def _clock(seconds: float | None) -> str:
    """A moment of the run: seconds with two decimals, or a dash."""
    return "–" if seconds is None else f"{seconds:,.2f} s"


def _cell(number: int) -> str:
    """A count, with a pale dot for zero, so that what is not zero stands out."""
    return f"{number:,}" if number else "·"
