"""What all plots have in common: their time axis, and how they look."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from services.loadtest.spans import Floats

ACTIVE = "#3f87c6"


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot, and what a reader should know of it."""

    name: str
    title: str
    caption: str
    figure: go.Figure


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis: in seconds, minutes or hours."""

    seconds: float
    factor: float
    unit: str

    @classmethod
    def of(cls, seconds: float) -> Axis:
        if seconds <= 400:
            return cls(seconds, 1.0, "seconds")
        return cls(seconds, 60.0, "minutes") if seconds <= 4 * 3600 else cls(seconds, 3600.0, "hours")

    def __call__(self, at: Floats | float) -> Floats | float:
        return at / self.factor


def empty(axis: Axis, height: int) -> go.Figure:
    """An empty plot. Left and right margins are the same for all, so that their times are above each other."""
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 76, "r": 44, "t": 10, "b": 44},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12},
        showlegend=True,  # of a single line, too
        legend={
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
            "traceorder": "normal",
        },
        hovermode="x unified",
        hoverlabel={"font": {"size": 12}},
        barmode="stack",
        bargap=0,
        dragmode="zoom",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8f99a6", "activecolor": ACTIVE},
    )
    x = {"range": [0, axis(axis.seconds)], "title": {"text": axis.unit, "standoff": 6}, "showgrid": True, "zeroline": False}
    figure.update_xaxes(**x, ticks="outside", ticklen=4, hoverformat=".2f", showline=True)
    figure.update_yaxes(rangemode="tozero", zeroline=False, automargin=False, title={"standoff": 8})
    return figure
