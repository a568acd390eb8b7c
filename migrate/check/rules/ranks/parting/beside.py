"""Calls right above and right below a test that end the graph on all replicas."""

from __future__ import annotations

from collections.abc import Set

import libcst as cst

from migrate.reading.facts import Facts
from migrate.syntax.tree import line_call


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
    return named_call(above, ends, facts), named_call(below, ends, facts)


def named_call(statement: cst.CSTNode | None, names: Set[str], facts: Facts) -> cst.Call | None:
    """Return the call that a line consists of, if it calls one of `names`."""
    call = line_call(statement)
    return call if call is not None and facts.names.of(call.func) in names else None
