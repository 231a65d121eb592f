"""The timeline of a run as plots that share their time axis: faults, answers, latency, and what is open."""

from __future__ import annotations

from html import escape

import numpy as np

from services.loadtest.columns import Columns
from services.loadtest.report.canvas import Axis, Plot, empty
from services.loadtest.report.lanes import bands, lanes
from services.loadtest.report.series import Bins, open_at_once, spread, ways
from services.loadtest.run import Run
from services.loadtest.spans import Floats
from services.loadtest.wording import limit

CALM, TEXT, PICTURE, QUEUE, READY = "#3f87c6", "#1f9e89", "#5b7be0", "#b8741a", "#7a8794"
COLOURS = {
    "200": CALM,
    "400": "#8f99a6",
    "503 encoder_unavailable": "#f2a33a",
    "503 encoder_failed": "#d9541e",
    "503 encoder_lost": "#a8322d",
    "503 encoder_overloaded": "#f4cd52",
    "503 embedding_timeout": "#b06a22",
    "503 embedding_incomplete": "#e58a6b",
    "503 embedding_corrupt": "#93305f",
    "503 embedding_incompatible": "#cf75a2",
    "503 engine_overloaded": "#d6b67c",
    "error in a stream": "#8a63d2",
    "other status": "#5b4a9c",
    "200, but wrong": "#e0218a",
    "no answer": "#9465ee",
}
"""Calm tones for what is well, warm ones for 503s, violet and magenta for what must not be. They differ in lightness, and so
for everybody; and a code has the same colour in all reports."""
OTHER_503 = "#8c6d46"
HATCHED = ("200, but wrong", "no answer")
DASHES = {0.5: "solid", 0.95: "dash", 0.99: "dot"}
MOST_DOTS = 1500
TICKS = tuple(digit * 10.0**power for power in range(-4, 4) for digit in (1, 2, 5))


def plots(run: Run, columns: Columns) -> list[Plot]:
    """All plots of a run, from above to below."""
    axis = Axis.of(max(run.seconds, 1e-3))
    drawn = [_answers(columns, axis), _latency(columns, axis), _open(run, columns, axis)]
    for plot in drawn:
        bands(plot.figure, run, axis)
    return [lanes(run, axis), *drawn] if run.faults else drawn


def _answers(columns: Columns, axis: Axis) -> Plot:
    bins, figure = Bins.over(axis.seconds), empty(axis, 320)
    for name, mask in ways(columns).items():
        figure.add_bar(
            x=axis(bins.middles),
            y=np.round(bins.per_second(columns.ended[mask]), 3),
            width=axis(bins.width),
            name=escape(f"{name} ({mask.sum():,})"),
            marker={
                "color": COLOURS.get(name, OTHER_503),
                "line": {"width": 0},
                "pattern": {"shape": "/" if name in HATCHED else "", "fillmode": "overlay", "fgcolor": "#ffffff", "size": 5},
            },
            hovertemplate="%{y:.1f}/s",
        )
    figure.update_yaxes(title={"text": "answers a second"})
    caption = (
        f"Each bar is {limit(bins.width)}, at the time the answers came. Below is what is well, above what failed; "
        "requests without any answer stand where their clients gave up."
    )
    return Plot("answers", "Answers", caption, figure)


def _latency(columns: Columns, axis: Axis) -> Plot:
    figure, seconds = empty(axis, 340), columns.seconds
    widths = []
    for name, chosen, colour in (("texts", columns.text, TEXT), ("pictures", columns.pictures, PICTURE)):
        rows = chosen & columns.success & columns.due
        if not rows.any():
            continue
        bins = Bins.filled(axis.seconds, int(rows.sum()))
        widths.append(f"{limit(bins.width)} for {name}")
        for share, dash in DASHES.items():
            figure.add_scatter(
                x=axis(bins.middles),
                y=bins.percentiles(columns.sent[rows], seconds[rows], share),
                name=f"{name} p{share * 100:.0f}",
                mode="lines+markers" if bins.count == 1 else "lines",
                line={"color": colour, "dash": dash, "width": 2.2 if share == 0.5 else 1.6},
                hovertemplate="%{y:.3f} s",
            )
    for name, mask in ways(columns).items():
        if name in ("200", "400"):
            continue
        rows_ = spread(mask, seconds, MOST_DOTS)
        figure.add_scatter(
            x=axis(columns.sent[rows_]),
            y=np.maximum(seconds[rows_], 1e-4),
            name=escape(name),
            mode="markers",
            marker={"color": COLOURS.get(name, OTHER_503), "size": 6, "opacity": 0.8, "symbol": _symbol(name)},
            text=[escape(columns.records[int(row)].id) for row in rows_],
            hovertemplate="%{y:.3f} s · %{text}",
        )
    values = seconds[columns.due]
    low, high = (max(1e-4, float(values.min())), max(1e-3, float(values.max()))) if len(values) else (0.01, 1.0)
    ticks = [tick for tick in TICKS if low / 2 <= tick <= high * 2]
    every = ticks if len(ticks) < 10 else [tick for tick in ticks if f"{tick:e}"[0] == "1"]
    figure.update_yaxes(type="log", rangemode="normal", tickvals=every, ticktext=[limit(tick) for tick in every])
    figure.update_yaxes(title={"text": "time to the whole answer"}, range=[np.log10(low / 1.3), np.log10(high * 1.4)])
    caption = (
        "Logarithmic, at the time the requests were sent. Lines are percentiles of successes, in bins of "
        f"{' and '.join(widths)}; "
        "where a bin holds fewer than 100, its p99 is its slowest. Dots are failures, each one request (of very many, the "
        "slowest and a sample); point at one for its id."
    )
    return Plot("latency", "Latency", caption if widths else "Nothing succeeded. Dots are failures.", figure)


def _symbol(name: str) -> str:
    known = {"200, but wrong": "star", "no answer": "x", "error in a stream": "cross", "other status": "cross"}
    warm = [each for each in COLOURS if each.startswith("503")]
    shapes = ("circle", "diamond", "square", "triangle-up", "triangle-down", "pentagon", "hexagon", "star-square", "bowtie")
    return known.get(name) or (shapes[warm.index(name)] if name in warm else "hourglass")


def _thinned(series: Floats, bins: Bins, share: float) -> tuple[Floats, Floats]:
    """Times and values; of more than can be drawn, for each bin the most (``share`` 1) or the least (0.01)."""
    at, values = series.T
    if len(at) <= 2 * bins.count:
        return at, values
    found = bins.percentiles(at, values, share)
    return bins.middles[~np.isnan(found)], found[~np.isnan(found)]


def _open(run: Run, columns: Columns, axis: Axis) -> Plot:
    figure, bins = empty(axis, 260), Bins.over(axis.seconds, 400, least=0.05)
    figure.add_scatter(
        x=axis(bins.starts),
        y=open_at_once(columns, bins),
        name="open requests (most in a bin)",
        line={"color": CALM, "shape": "hv", "width": 1.4},
        fill="tozeroy",
        fillcolor="rgba(63,135,198,0.12)",
        hovertemplate="%{y:.0f} open",
    )
    queued = [(sample.at, sample.queued) for sample in run.samples if sample.queued is not None]
    ready = [(sample.at, sample.encoders_ready) for sample in run.samples if sample.encoders_ready is not None]
    if queued:
        at, values = _thinned(np.array(queued), bins, 1.0)
        line = {"color": QUEUE, "width": 1.8}
        figure.add_scatter(x=axis(at), y=values, name="queue depth", mode="lines", line=line, hovertemplate="%{y:.0f} queued")
    if ready:
        at, values = _thinned(np.array(ready), bins, 0.01)
        line = {"color": READY, "shape": "hv", "width": 2.4, "dash": "dash"}
        name = "encoders ready (right)"
        figure.add_scatter(x=axis(at), y=values, name=name, mode="lines", line=line, yaxis="y2", hovertemplate="%{y:.0f} ready")
        most = max(float(values.max()), 1.0)
        figure.update_layout(yaxis2={"overlaying": "y", "side": "right", "range": [0, most * 1.12], "showgrid": False})
        figure.update_layout(yaxis2={"dtick": max(1, int(most // 5)), "zeroline": False, "tickformat": "d"})
    figure.update_yaxes(title={"text": "requests"}, selector={"overlaying": None})
    said = "" if queued or ready else " The deployment says nothing of its queues and encoders."
    caption = "Open requests as clients saw them; queue depth and encoders that are ready as the deployment says." + said
    return Plot("open", "What is open", caption, figure)
