"""Sections of a page that a benchmark writes: what is between ``<!-- name -->`` and ``<!-- end of name -->``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import machine

_SECTION = re.compile(r"<!-- (?P<name>[\w ]+) -->\n.*?<!-- end of (?P=name) -->\n", re.DOTALL)


def report(title: str, text: str, table: Iterable[str], page: Path | None) -> None:
    """Prints what was measured, and on what; also puts it into the section of ``page`` that is called like it."""
    facts = [f"* {fact}" for fact in (f"commit: {machine.commit()}, on {time.strftime('%Y-%m-%d')}", *machine.describe()[:2])]
    body = [f"## {title}", "", text, "", *facts, "", *table]
    print("\n".join(body))
    if page is not None:
        write_section(page, title.lower(), body)


def write_section(page: Path, name: str, lines: Iterable[str]) -> None:
    """Puts ``lines`` in place of the section that the page has by this name; at its end if there is none."""
    text = page.read_text() if page.exists() else ""
    body = "\n".join(lines)
    section = f"<!-- {name} -->\n{body}\n<!-- end of {name} -->\n"
    before = next((found for found in _SECTION.finditer(text) if found["name"] == name), None)
    if before is None:
        page.write_text(f"{text.rstrip()}\n\n{section}" if text else section)
    else:
        page.write_text(text[: before.start()] + section + text[before.end() :])


def sections_of(page: Path) -> str:
    """All such sections of a page, for who writes the rest of it anew."""
    text = page.read_text() if page.exists() else ""
    return "".join(f"\n{found[0]}" for found in _SECTION.finditer(text))
