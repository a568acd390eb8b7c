"""Reads of every step that `migrate rewrite --defer-reads` would defer."""

from __future__ import annotations

import libcst as cst

from migrate.rewrite.rules.step.deferral.deferring import Deferring
from migrate.rewrite.workspace import Workspace

SUGGESTION = "`migrate rewrite --defer-reads` reads the value only where it is used"


def deferrable_lines(script: Workspace) -> frozenset[int]:
    """Return the lines of a rewritten script whose reads the option would defer.

    The option's own analysis decides, so only reads that the option would defer are suggested.
    """
    lines: set[int] = set()
    for loop in script.all_of(cst.For, cst.While):
        if isinstance(loop.body, cst.IndentedBlock):
            for reading in Deferring(loop, script).deferred:
                start, end = script.position(reading.line), script.end(reading.line)
                lines.update(range(start.line, end.line + 1))
    return frozenset(lines)
