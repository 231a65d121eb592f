"""The course of an autoscaled fleet as a picture."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

WIDTH, HEIGHT = 1100, 620


@dataclass(frozen=True)
class Sample:
    """One moment: seconds since the beginning, pictures offered a second, items that encoders have, replicas that Serve has
    started, and those of them that the language service uses."""

    at: float
    offered: float
    items: int
    started: int
    ready: int


def figure(samples: Sequence[Sample]) -> go.Figure:
    """Three plots above each other: what is offered, what encoders have, and how many of them there are."""
    at = [sample.at for sample in samples]
    drawn = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    lines = (
        (1, "pictures offered a second", "#1f9e89", "solid", [sample.offered for sample in samples]),
        (2, "items in work, of all encoders", "#b8741a", "solid", [sample.items for sample in samples]),
        (3, "encoder replicas started", "#7a8794", "dot", [sample.started for sample in samples]),
        (3, "encoder replicas ready", "#3f87c6", "solid", [sample.ready for sample in samples]),
    )
    for row, name, colour, dash, values in lines:
        shape = "linear" if row == 2 else "hv"
        line = {"color": colour, "width": 2.2, "dash": dash, "shape": shape}
        drawn.add_scatter(x=at, y=values, name=name, mode="lines", line=line, row=row, col=1)
    drawn.update_layout(
        template="plotly_white",
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 70, "r": 30, "t": 50, "b": 50},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.03, "yanchor": "bottom", "x": 0},
    )
    drawn.update_xaxes(range=[0, max(at, default=1.0)])
    drawn.update_yaxes(rangemode="tozero")
    drawn.update_yaxes(title={"text": "pictures/s"}, row=1, col=1)
    drawn.update_yaxes(title={"text": "items"}, row=2, col=1)
    drawn.update_yaxes(title={"text": "replicas"}, dtick=1, row=3, col=1)
    drawn.update_xaxes(title={"text": "seconds"}, row=3, col=1)
    return drawn


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Writes the picture, by a headless Chromium.

    Raises:
        OSError, subprocess.CalledProcessError: Chromium is not there, or fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plot.html"
        page.write_text(figure(samples).to_html(include_plotlyjs=True, config={"displayModeBar": False, "staticPlot": True}))
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", "--virtual-time-budget=10000"]
        size = f"--window-size={WIDTH + 16},{HEIGHT + 16}"
        command = [
            "chromium",
            *flags,
            size,
            f"--user-data-dir={folder}/profile",
            f"--screenshot={path.resolve()}",
            page.as_uri(),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
