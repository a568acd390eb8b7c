"""The look of every table."""

from __future__ import annotations

from collections.abc import Collection

from rich.table import Table


def plain_table(*columns: str, fixed: Collection[str] = ()) -> Table:
    """Return a table without lines, which fits into 80 columns.

    Args:
        columns: the headings; without any there is no row of headings.
        fixed: headings of short cells, such as numbers, that are never broken; longer cells give way.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in fixed)
    return table
