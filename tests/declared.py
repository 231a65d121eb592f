"""The metrics that the sources declare, read from their syntax: most exist only once a service has loaded its model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.processes import ROOT


@dataclass(frozen=True)
class Metric:
    """One metric, as ``Metrics.counter``, ``gauge`` or ``histogram`` was asked for it."""

    kind: str
    name: str
    text: str
    labels: tuple[str, ...]


def metrics(*folders: str) -> list[Metric]:
    """Those that are declared below ``folders``, by name."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted((metric for path in paths for metric in _metrics_in(path.read_text())), key=lambda metric: metric.name)


def _metrics_in(source: str) -> Iterator[Metric]:
    tree = ast.parse(source)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            kind = call.func.attr
            if kind not in ("counter", "gauge", "histogram"):
                continue
            around = [loop for loop in loops if call in ast.walk(loop)]
            for values in _rounds(around[0]) if around else [{}]:
                name, text, *labels = (_string(argument, values) for argument in call.args)
                yield Metric(kind, name, text, tuple(labels))


def _rounds(loop: ast.For) -> Iterator[dict[str, str]]:
    """The strings that a loop over a table gives its variables, row by row."""
    assert isinstance(loop.target, ast.Tuple)
    assert isinstance(loop.iter, ast.Tuple)
    for row in loop.iter.elts:
        assert isinstance(row, ast.Tuple)
        cells = zip(loop.target.elts, row.elts, strict=True)
        yield {
            variable.id: cell.value
            for variable, cell in cells
            if isinstance(variable, ast.Name) and isinstance(cell, ast.Constant)
        }


def _string(expression: ast.expr, values: dict[str, str]) -> str:
    """A string that is written out, is a variable's, or has variables in it."""
    match expression:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return values[name]
        case ast.JoinedStr(values=parts):
            return "".join(_string(part, values) for part in parts)
        case ast.FormattedValue(value=part):
            return _string(part, values)
    raise AssertionError(f"cannot tell what {ast.unparse(expression)} is; say metrics' names and labels as literals")
