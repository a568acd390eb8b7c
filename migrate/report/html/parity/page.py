"""The page of `migrate parity`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from migrate.parity.ground.results import LayerVerdict, Parity, ParityVerdict, Section
from migrate.report.html.banner import Banner, State, joined, sentence
from migrate.report.html.page import write_page
from migrate.report.html.parity import cells as parity_cells
from migrate.report.html.parity import plots as parity_plots
from migrate.report.text.parity import words
from migrate.report.text.parity.nodes import module_tree

HISTOGRAMS = 12  # of more layers that diverge; --json has all
_LONG = 16  # checks from which on a section that passed is folded

_VERDICTS: dict[ParityVerdict, tuple[State, str]] = {
    ParityVerdict.MATCH: ("fine", "Match"),
    ParityVerdict.A_WORSE: ("wrong", "A diverges from the reference"),
    ParityVerdict.B_WORSE: ("wrong", "B diverges from the reference"),
    ParityVerdict.BOTH_WORSE: ("wrong", "A and B diverge from the reference"),
    ParityVerdict.PARTLY: ("wrong", "Layers match, other checks fail"),
    ParityVerdict.NOT_FINITE: ("open", "The reference is not finite"),
}


def write_parity_page(parity: Parity, path: Path) -> None:
    """Write the page of a comparison to `path`, replacing the file if it exists.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    counts = Counter(layer.verdict for layer in parity.layers)
    rows = parity_cells.layer_rows(parity)
    write_page(
        "parity.html.j2",
        path,
        _banner(parity),
        title=f"migrate parity {parity.a.target} {parity.b.target}",
        parity=parity,
        words=words,
        sides=list(words.sides(parity)),
        counts=[(words.verdict(verdict), counts[verdict]) for verdict in LayerVerdict],
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
            if (svg := parity_plots.histogram(words.layer_name(name), edges, a, b))
        ],
        sections=[_section(section) for section in parity.sections],
    )


def _banner(parity: Parity) -> Banner:
    state, verdict = _VERDICTS[parity.verdict]
    finding = sentence(words.sentence(parity.sentence))
    return Banner(state, verdict, finding, sentence(_next_step(parity)))


def _next_step(parity: Parity) -> str:
    failed = [section.name for section in parity.sections if not section.passed]
    if parity.verdict is ParityVerdict.NOT_FINITE:
        return "use inputs and weights for which the float64 reference is finite"
    if parity.matches:
        compared = {section.name for section in parity.sections}
        more = [
            option
            for name, option in (("gradients", "`--gradients`"), ("training", "`--train 20`"))
            if name not in compared
        ]
        return f"nothing has to be changed. Compare more with {joined(more)}" if more else ""
    if parity.first is not None:
        layer = f"`{words.layer_name(parity.first.name)}`"
        lines = [
            f"`{words.place(side.called or side.defined)}`"
            for letter, side in words.two(parity.first)
            if letter in words.parting_sides(parity.first) and (side.called or side.defined)
        ]
        where = f" ({joined(lines)})" if lines else ""
        certain = any(cause.certain for cause in parity.causes)
        how = " as its cause says" if certain else ""
        return f"correct {layer}{where}{how}, and compare again"
    if failed:
        return f"look at the failed checks below: {joined(failed)}"
    return "look at the layers below with the largest errors"


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
        "remarks": not words.one_source(section) or any(check.note for check in section.checks),
        "nearest": words.nearest(section),
        "curves": parity_plots.curves(section),
    }
