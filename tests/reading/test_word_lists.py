"""Every list of names is on the page that says what it is evidence for."""

from __future__ import annotations

import re
from pathlib import Path

from migrate.catalogue import words

PAGE = Path(__file__).parents[2] / "docs" / "word-lists.md"
LISTS = {
    name
    for name, value in vars(words).items()
    if name.isupper() and not name.startswith("_") and not callable(value)
}


def rows() -> list[list[str]]:
    """Return the cells of the rows of the page's tables."""
    lines = PAGE.read_text().splitlines()
    cells = [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in cells]


def listed() -> list[str]:
    """Return the lists that the first cells name."""
    return [name for row in rows() for name in re.findall(r"`([A-Z_]+)`", row[0])]


def test_every_list_stands_in_the_page_once() -> None:
    assert sorted(listed()) == sorted(LISTS)


def test_every_row_says_what_happens() -> None:
    assert all(len(row) in (2, 4) and all(row) for row in rows())


def test_the_architecture_leads_there() -> None:
    assert "word-lists.md" in PAGE.with_name("architecture.md").read_text()
