"""Benchmarks write their own sections of a page and leave the rest alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pages import sections_of, write_section


def test_a_section_is_added_then_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nText.\n")
    write_section(page, "one", ["## One", "", "1"])
    write_section(page, "two words", ["## Two", "", "2"])
    write_section(page, "one", ["## One", "", "11"])
    first, second = (
        "<!-- one -->\n## One\n\n11\n<!-- end of one -->\n",
        "<!-- two words -->\n## Two\n\n2\n<!-- end of two words -->\n",
    )
    assert page.read_text() == f"# Title\n\nText.\n\n{first}\n{second}"
    assert sections_of(page) == f"\n{first}\n{second}"


def test_a_page_that_is_not_there_is_made(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert sections_of(page) == ""
    write_section(page, "one", ["1"])
    assert page.read_text() == "<!-- one -->\n1\n<!-- end of one -->\n"
