"""The rules that keep the seam a seam."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import ROOT


def imports(folder: str) -> Iterator[tuple[Path, str]]:
    """Every module that a file below ``folder`` imports, outside of ``if TYPE_CHECKING`` blocks."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        typing_only = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if node in typing_only:
                continue
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path, node.module


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("services/encoder", ("services.language",)),
        ("services/language", ("services.encoder",)),
        ("shared", ("services",)),
        ("services/language/api", ("torch", "zmq", "transformers")),
        ("services", ("examples", "tests", "benchmarks")),
        ("shared", ("examples", "tests", "benchmarks")),
    ],
)
def test_nothing_imports_what_it_must_not_know(folder: str, forbidden: tuple[str, ...]) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, name in imports(folder)
        if name.startswith(tuple(f"{module}." for module in forbidden)) or name in forbidden
    ]
    assert wrong == []


@pytest.mark.parametrize("needle", ["import pickle", "import marshal", "torch.load(", "recv_pyobj", "send_pyobj"])
def test_nothing_is_ever_unpickled(needle: str) -> None:
    sources = [path for folder in ("services", "shared", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in sources if needle in path.read_text()] == []
