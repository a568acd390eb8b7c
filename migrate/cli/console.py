"""Consoles of rich, all views on them equally wide."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

MOST_COLUMNS = 120
_ENDLESS = 100_000  # columns


def columns() -> int:
    """Return the width of tables: that of the terminal, at most 120; 120 where there is no terminal."""
    return min(shutil.get_terminal_size((MOST_COLUMNS, 24)).columns, MOST_COLUMNS)


def console_for(*, err: bool = False) -> Console:
    """Return a console on stdout, or on stderr."""
    from rich.console import Console

    # A pipe or a log has no width of its own: a line of text stays one line. Codes of rich's emoji stay as
    # they are: `train.py:100:7` is a place.
    on_screen = (sys.stderr if err else sys.stdout).isatty()
    width = columns() if on_screen else _ENDLESS
    return Console(stderr=err, force_terminal=on_screen, width=width, highlight=False, emoji=False)
