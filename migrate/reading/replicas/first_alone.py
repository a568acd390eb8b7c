"""Tests below which the first replica acts alone, and whether anything is pending for it there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import SYNCS
from migrate.reading.replicas.first_replica import on_first
from migrate.reading.replicas.own_values import decided_alone
from migrate.syntax.tree import keyword

if TYPE_CHECKING:
    from migrate.reading.script import Script

# Calls after which nothing is pending.
_RUN_PENDING = SYNCS | {"shims.synchronize"}


def guard_of_first(call: cst.CSTNode, context: Script) -> cst.If | None:
    """Return the outermost test by which the first replica alone reaches `call`; None if there is none.

    All replicas reach the test itself, and a statement can stand before it.
    """
    guard = None
    within: cst.CSTNode = call
    while (around := context.guards.around(within)) is not None:
        if not isinstance(around, cst.If) or not _is_of_first(around, within, context):
            return None
        guard = within = around
    if guard is None or not isinstance(context.parent(guard), cst.IndentedBlock | cst.Module):
        return None
    return guard if decided_alone(guard, context) is None else None


def _is_of_first(guard: cst.If, within: cst.CSTNode, context: Script) -> bool:
    """Whether the first replica, and no other, passes `guard` to `within`."""
    rest = on_first(guard.test, context)
    if rest is None or any(context.guards.told(part) is False for part in rest.asked):
        return False
    if context.guards.asks_for_a_group(guard.test):
        return False
    return any(above is guard.body for above in context.ancestors(within))


def saves_alone(call: cst.Call, context: Script) -> bool:
    """Whether a save below a test of the first replica leaves no other replica behind.

    `xm.save(…, master_only=False)` or `shims.save`, where all replicas have run what is pending right before
    the test.
    """
    name = context.qualified_name(call.func)
    only = keyword(call, "master_only")
    writes = only is not None and isinstance(only.value, cst.Name) and only.value.value == "False"
    if name != "shims.save" and not writes:
        return False
    guard = guard_of_first(call, context)
    return guard is not None and any(
        _is_synchronized(statement, context) for statement in _together(guard, context)
    )


def _together(guard: cst.If, context: Script) -> Iterator[cst.BaseStatement]:
    """Yield `guard`, and the statements around it by which all replicas run the first one's branch."""
    yield guard
    owner = context.parent(context.parent(guard))
    items = owner.items if isinstance(owner, cst.With) else ()
    calls = [item.item.func for item in items if isinstance(item.item, cst.Call)]
    if isinstance(owner, cst.With) and "shims.together" in map(context.qualified_name, calls):
        yield owner
        above = context.parent(context.parent(owner))
        if isinstance(above, cst.If):
            yield above


def _is_synchronized(statement: cst.BaseStatement, context: Script) -> bool:
    """Whether the statement before it runs what is pending."""
    block = context.parent(statement)
    if not isinstance(block, cst.IndentedBlock | cst.Module):
        return False
    at = next(number for number, other in enumerate(block.body) if other is statement)
    before = block.body[at - 1] if at else None
    if not isinstance(before, cst.SimpleStatementLine) or len(before.body) != 1:
        return False
    line = before.body[0]
    call = line.value if isinstance(line, cst.Expr) else None
    return isinstance(call, cst.Call) and context.qualified_name(call.func) in _RUN_PENDING
