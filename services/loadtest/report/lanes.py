"""Faults as they are drawn: a lane for each target, and bands across the other plots."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

from services.loadtest.phases import effect, end, recovery
from services.loadtest.report.canvas import Axis, Plot, empty
from services.loadtest.run import Fault, Run

FAULT, RETURN = "#b5541c", "#d99a6c"
BAND, FADING, EDGE = "rgba(214,120,40,0.15)", "rgba(214,120,40,0.06)", "rgba(190,95,30,0.75)"
MOST_NAMED = 15
"""Faults that a plot can tell apart by numbers."""
MOST_BANDS = 150


def lanes(run: Run, axis: Axis) -> Plot:
    """What was done to whom, one lane for each."""
    targets = list(dict.fromkeys(target for fault in run.faults for target in (fault.targets or ("?",))))
    figure = empty(axis, 64 + 34 * max(1, len(targets)))
    over = end(run)
    for name, pattern, parts in (
        ("in effect", "", [_part(fault, over) for fault in run.faults]),
        ("coming back", "/", [_coming_back(fault) for fault in run.faults]),
    ):
        rows = [
            (number, fault, target, part)
            for number, (fault, part) in enumerate(zip(run.faults, parts, strict=True), 1)
            if part is not None
            for target in (fault.targets or ("?",))
        ]
        if not rows:
            continue
        figure.add_bar(
            orientation="h",
            base=[axis(part[0]) for *_, part in rows],
            x=[axis(part[1] - part[0]) for *_, part in rows],
            y=[escape(target) for _, _, target, _ in rows],
            text=[escape(f"{number} {fault.action}") if not pattern else "" for number, fault, _, _ in rows],
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
            textfont={"color": "#ffffff", "size": 12},
            name=name,
            marker={
                "color": FAULT if not pattern else RETURN,
                "pattern": {"shape": pattern, "fillmode": "overlay", "fgcolor": "#ffffff", "size": 6},
                # Of very many, each is so narrow that an outline would be all there is of it.
                "line": {"color": "#ffffff", "width": 1} if len(run.faults) <= MOST_NAMED else {"color": FAULT, "width": 0.5},
            },
            hovertext=[_told(fault) for _, fault, _, _ in rows],
            hovertemplate="%{hovertext}<extra></extra>",
            width=0.72,
        )
    figure.update_layout(hovermode="closest", barmode="overlay", uniformtext={"minsize": 9, "mode": "hide"})
    rows_of = [escape(target) for target in reversed(targets)]
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=rows_of, range=[-0.5, len(targets) - 0.5])
    figure.update_xaxes(title={"text": ""})  # the plots below say it, and here is no room
    figure.update_yaxes(tickvals=rows_of, ticktext=[_short(target) for target in reversed(targets)])
    numbers = ", with the same numbers" if len(run.faults) <= MOST_NAMED else ""
    first = "" if len(run.faults) <= MOST_BANDS else f" of the first {MOST_BANDS}"
    caption = (
        "From when a fault was ordered to when what it hit was well again; hatched from when its end was ordered. The plots "
        f"below show the same{first} as bands{numbers}, and what may still be recovery paler."
    )
    return Plot("faults", "Faults", caption, figure)


def _short(target: str) -> str:
    """What there is room for; names of parts differ at their ends."""
    return escape(target if len(target) <= 11 else f"…{target[-10:]}")


def _part(fault: Fault, over: float) -> tuple[float, float]:
    began, ended = effect(fault, over)
    return began, ended if fault.lifting is None else max(began, fault.lifting)


def _coming_back(fault: Fault) -> tuple[float, float] | None:
    return None if fault.lifting is None or fault.cleared is None else (fault.lifting, fault.cleared)


def _told(fault: Fault) -> str:
    times = {"ordered": fault.ordered, "applied": fault.applied, "end ordered": fault.lifting, "well again": fault.cleared}
    lines = [f"<b>{escape(fault.line)}</b>", *(f"{name} {at:.2f} s" for name, at in times.items() if at is not None)]
    return "<br>".join([*lines, *([escape(fault.error)] if fault.error else [])])


def bands(figure: go.Figure, run: Run, axis: Axis) -> None:
    """Draws faults as numbered bands, with lines where they were ordered and cleared, and their recovery paler."""
    over, rest = end(run), recovery(run)
    spans = [(number, *effect(fault, over)) for number, fault in enumerate(run.faults[:MOST_BANDS], 1)]
    low = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    painted = [(began, ended, BAND) for _, began, ended in spans] + [(ended, ended + rest, FADING) for *_, ended in spans]
    shapes = [
        {
            "type": "rect",
            "x0": axis(began),
            "x1": axis(min(ended, axis.seconds)),
            "fillcolor": fill,
            "line": {"width": 0},
            **low,
        }
        for began, ended, fill in painted
        if began < axis.seconds
    ]
    if len(spans) <= MOST_NAMED:
        for _, began, ended in spans:
            for at, dash in ((began, "solid"), (ended, "dot")):
                if at < axis.seconds:
                    line = {"color": EDGE, "width": 1, "dash": dash}
                    shapes.append({"type": "line", "x0": axis(at), "x1": axis(at), "line": line, **low})
        figure.update_layout(
            annotations=[
                {
                    "x": axis(began),
                    "y": 1,
                    "yref": "paper",
                    "text": f"<b>{number}</b>",
                    "showarrow": False,
                    "xanchor": "left",
                    "yanchor": "top",
                    "font": {"color": "#ffffff", "size": 11},
                    "bgcolor": FAULT,
                    "borderpad": 2,
                }
                for number, began, _ in spans
            ]
        )
    figure.update_layout(shapes=shapes)
