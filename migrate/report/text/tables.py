"""The look of every table."""

from __future__ import annotations

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """Return a table without lines; `columns` are the headings, none of them: no heading."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
