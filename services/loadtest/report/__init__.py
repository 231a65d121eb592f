"""Reports: one HTML page for people, JSON to judge again, and JUnit XML for CI."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from services.loadtest.report.files import read, to_json, to_junit
from services.loadtest.report.page import page
from services.loadtest.run import Run
from services.loadtest.verdicts import Verdict

__all__ = ["read", "write"]


def write(run: Run, verdicts: Sequence[Verdict], folder: Path) -> Path:
    """Writes ``report.html``, ``report.json`` and ``junit.xml`` into ``folder``, which is made where it is not there.

    A file is there as a whole or not at all; one of an earlier run stays until it is replaced.

    Returns:
        The path of the HTML page.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "report.json": to_json(run, verdicts).encode(),
        "junit.xml": to_junit(run, verdicts),
        "report.html": page(run, verdicts).encode(),
    }
    for name, content in contents.items():
        _replace(folder / name, content)
    return folder / "report.html"


def _replace(path: Path, content: bytes) -> None:
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            # A temporary file is its owner's alone; a report is read by others: CI, a browser outside of the container.
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
