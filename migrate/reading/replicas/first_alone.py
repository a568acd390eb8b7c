"""Tests below which the first replica acts alone, and whether anything is pending for it there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import SYNCS
from migrate.reading.replicas.first_replica import off_first, on_first
from migrate.reading.replicas.own_values import decided_alone
from migrate.syntax.tree import keyword, line_call

if TYPE_CHECKING:
    from migrate.reading.script import Script

# Calls after which nothing is pending.
_RUN_PENDING = SYNCS | {"shims.synchronize"}


def guards_of_first(
    node: cst.CSTNode, context: Script, within: tuple[cst.CSTNode, ...] = ()
) -> tuple[cst.If, ...]:
    """Return the outermost tests by which the first replica alone reaches `node`; empty if it is not alone.

    There are several where `node` is in a function that is called below several. All replicas reach the tests
    themselves, and a statement can stand before each.

    Args:
        node: the node.
        context: the script.
        within: functions that are followed already.
    """
    guard: cst.If | None = None
    inner = node
    while (around := context.guards.around(inner)) is not None:
        if isinstance(around, cst.FunctionDef):
            return () if around in within else _below_calls(around, context, (*within, around))
        if not isinstance(around, cst.If) or not _is_of_first(around, inner, context):
            return ()
        guard = inner = around
    if guard is None or not isinstance(context.parent(guard), cst.IndentedBlock | cst.Module):
        return ()
    return (guard,) if decided_alone(guard, context) is None else ()


def _below_calls(
    function: cst.FunctionDef, context: Script, within: tuple[cst.CSTNode, ...]
) -> tuple[cst.If, ...]:
    """Return the tests around the calls of `function`; empty if it is used otherwise, or a call has none."""
    guards: dict[cst.If, None] = {}
    calls = calls_of(function, context)
    for call in calls or ():
        around = guards_of_first(call, context, within)
        if not around:
            return ()
        guards |= dict.fromkeys(around)
    return tuple(guards)


def calls_of(function: cst.FunctionDef, context: Script) -> list[cst.Call] | None:
    """Return the calls of `function` in the script; None if it is used in another way, too."""
    if function.decorators:
        return None
    calls: list[cst.Call] = []
    for mention in context.guards.mentions_of(function):
        called: cst.CSTNode = mention
        above = context.parent(called)
        if isinstance(above, cst.Attribute) and above.attr is mention:
            if context.qualified_name(above) is not None:
                continue  # a function of a library, of that name
            called, above = above, context.parent(above)
        if not isinstance(above, cst.Call) or above.func is not called:
            return None
        calls.append(above)
    return calls


def _is_of_first(guard: cst.If, within: cst.CSTNode, context: Script) -> bool:
    """Whether by `guard` the first replica, and no other, reaches `within`.

    `within` is in the branch of `guard`, or the others leave before it: `if rank != 0: return`.
    """
    if context.guards.asks_for_a_group(guard.test):
        return False
    above = list(context.ancestors(within))
    if guard not in above:
        rest = off_first(guard.test, context)
    else:
        rest = on_first(guard.test, context) if guard.body in above else None
    return rest is not None and all(context.guards.told(part) is not False for part in rest.asked)


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
    guards = guards_of_first(call, context)
    return bool(guards) and all(
        any(_is_synchronized(statement, context) for statement in _together(guard, context))
        for guard in guards
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
    call = line_call(context.statement_above(statement))
    return call is not None and context.qualified_name(call.func) in _RUN_PENDING
