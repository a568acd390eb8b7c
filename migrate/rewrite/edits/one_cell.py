"""Edits of joined cells stay within one cell."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from migrate.rewrite.plan import Plan
from migrate.rewrite.rule import Edit, RuleFinding, Wrap
from migrate.syntax.notebook.cells import MARK


def within_cells(plan: Plan) -> Plan:
    """Return a plan for joined cells, in which edits across the end of a cell are findings instead."""
    context = plan.context
    lines = context.source.text.split("\n")
    ends = [number for number, line in enumerate(lines, 1) if MARK.match(line)]
    edits: list[Edit | Wrap] = []
    findings = list(plan.findings)
    for edit in plan.edits:
        first = context.position(edit.node).line
        last = context.position(edit.last).line if isinstance(edit, Wrap) else first
        if bisect_left(ends, first) == bisect_left(ends, last):
            edits.append(edit)
            continue
        message = f"{edit.message}: this edit spans several cells: put them into one first"
        findings.append(RuleFinding(edit.rule, edit.node, message))
    return replace(plan, edits=tuple(edits), findings=tuple(findings))
