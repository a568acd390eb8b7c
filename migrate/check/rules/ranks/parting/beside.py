"""Calls right above and right below a test that end the graph on all replicas."""

from __future__ import annotations

from collections.abc import Set

import libcst as cst

from migrate.reading.facts import Facts


def ends_beside(
    guard: cst.CSTNode, ends: Set[str], facts: Facts
) -> tuple[cst.Call | None, cst.Call | None]:
    """Return the calls of `ends` right above and right below `guard`; None for another statement.

    Only a line that is such a call counts: one in an `if`, a `def` or a loop may not run here.
    """
    block = facts.context.parent(guard)
    if not isinstance(guard, cst.If) or not isinstance(block, cst.IndentedBlock | cst.Module):
        return None, None
    at = next(index for index, statement in enumerate(block.body) if statement is guard)
    above = block.body[at - 1] if at else None
    below = block.body[at + 1] if at + 1 < len(block.body) else None
    return line_call(above, ends, facts), line_call(below, ends, facts)


def line_call(statement: cst.CSTNode | None, names: Set[str], facts: Facts) -> cst.Call | None:
    """Return the call that a line consists of, if it calls one of `names`."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    line = statement.body[0]
    call = line.value if isinstance(line, cst.Expr) else None
    if not isinstance(call, cst.Call) or facts.names.of(call.func) not in names:
        return None
    return call
