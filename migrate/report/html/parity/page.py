"""The page of `migrate parity`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from migrate.parity.ground.results import LayerVerdict, Parity, Section
from migrate.report.html.page import write_page
from migrate.report.html.parity import cells as parity_cells
from migrate.report.html.parity import plots as parity_plots
from migrate.report.text.parity import words
from migrate.report.text.parity.nodes import module_tree

HISTOGRAMS = 12  # of more layers that part; --json has them all
_LONG = 16  # checks from which on a section that passed is folded


def write_parity_page(parity: Parity, path: Path) -> None:
    """Write the page of a comparison to `path`; what is there is replaced.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    counts = Counter(layer.verdict.value for layer in parity.layers)
    rows = parity_cells.layer_rows(parity)
    write_page(
        "parity.html.j2",
        path,
        title=f"migrate parity {parity.a.target} {parity.b.target}",
        parity=parity,
        words=words,
        sides=list(words.sides(parity)),
        counts=[(verdict.value, counts[verdict.value]) for verdict in LayerVerdict],
        depth={
            what: parity_plots.depth_plot(parity, local=what == "local")
            for what in ("local", "accumulated")
        },
        heat_rows=parity_cells.HeatMap(parity).rows(module_tree(parity.layers))
        if parity.layers
        else (),
        shades=parity_cells.SHADES,
        columns=parity_cells.COLUMNS,
        rows=rows,
        ulps=any(row.ulps != ("–", "–") for row in rows),
        first_row=_first(parity),
        more=[
            (index, words.layer_name(layer.name))
            for index, layer in enumerate(parity.layers)
            if layer.verdict in words.PARTING and not words.is_first(parity, layer)
        ],
        alone=[layer for layer in parity.layers if layer.verdict is LayerVerdict.ALONE],
        histograms=[
            (words.layer_name(name), svg)
            for name, edges, a, b in parity.histograms[:HISTOGRAMS]
            if (svg := parity_plots.histogram(edges, a, b))
        ],
        sections=[_section(section) for section in parity.sections],
    )


def _first(parity: Parity) -> parity_cells.LayerRow | None:
    return parity_cells.layer_row(parity, parity.first) if parity.first is not None else None


def _section(section: Section) -> dict[str, Any]:
    failed = [check for check in section.checks if not check.passed]
    passed = [check for check in section.checks if check.passed]
    return {
        "section": section,
        "anchor": section.name.replace(" ", "-"),
        "failed": len(failed),
        "checks": [*failed, *passed],
        "sides": any(check.a is not None for check in section.checks),
        "long": len(section.checks) >= _LONG,
        "source": words.one_source(section),
        "nearest": words.nearest(section),
        "curves": parity_plots.curves(section),
    }
