"""Ways out of a function before it saves: `if path is None: return`.

Where all replicas take them alike, they stay with all replicas when the rest of the function goes below
a test of the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import EXITS
from migrate.model.pure import PURE_CALLS, is_pure
from migrate.reading.replicas.own_values import own_value
from migrate.reading.steps.leaving import ends_program, leaves_turn
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, last_part, nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

BEFORE_SAVING = "before it saves, not on all replicas"


@dataclass
class WaysOut:
    """The ways out of a function before its last save.

    Args:
        stays: the statements that all replicas go on to run.
        guarded: blocks in them, each with the statements that are the first replica's alone.
        obstacle: why some replicas might leave and others not. Empty if none might.
    """

    stays: list[cst.BaseStatement] = field(default_factory=list)
    guarded: list[tuple[cst.IndentedBlock, list[cst.BaseStatement]]] = field(default_factory=list)
    obstacle: str = ""


def ways_out(
    function: cst.FunctionDef, saves: Callable[[cst.CSTNode], bool], context: Workspace
) -> WaysOut:
    """Return the ways out of `function` before the last of its statements that is one of `saves`."""
    ways_out = WaysOut()
    body = cst.ensure_type(function.body, cst.IndentedBlock).body
    last = max((i for i, statement in enumerate(body) if saves(statement)), default=0)
    for statement in body[:last]:
        if _leaves(statement) and not saves(statement) and not _only_asserts(statement):
            if not _take(statement, ways_out, context):
                line = context.position(statement).line
                name = function.name.value
                ways_out.obstacle = f"{at_line(line)} may leave {name} {BEFORE_SAVING}"
                return ways_out
            ways_out.stays.append(statement)
    return ways_out


def leaves_before(
    body: list[cst.BaseStatement], out: list[cst.BaseStatement]
) -> cst.BaseStatement | None:
    """Return the statement of `body` that stays, and may leave before the last statement of `out`."""
    going = {id(statement) for statement in out}
    last = max((i for i, statement in enumerate(body) if id(statement) in going), default=0)
    before = (s for s in body[:last] if id(s) not in going)
    return next((statement for statement in before if _leaves(statement)), None)


def _leaves(statement: cst.CSTNode) -> bool:
    return leaves_turn(statement) or ends_program(statement)


def _take(statement: cst.BaseStatement, ways_out: WaysOut, context: Workspace) -> bool:
    """Record how all replicas run `statement`, and return whether they run it in the same way."""
    if isinstance(statement, cst.SimpleStatementLine):
        small = statement.body[0]
        if isinstance(small, cst.Assert):
            return _is_same(small.test, context)
        return len(statement.body) == 1 and isinstance(small, cst.Return | cst.Raise)
    if not isinstance(statement, cst.If) or not isinstance(statement.body, cst.IndentedBlock):
        return False
    if statement.orelse is not None or not _is_same(statement.test, context):
        return False
    only = []
    for inner in statement.body.body:
        if _leaves(inner):
            if not _take(inner, ways_out, context):
                return False
        elif not is_pure(inner):
            only.append(inner)
    if only:
        ways_out.guarded.append((statement.body, only))
    return True


def _only_asserts(statement: cst.CSTNode) -> bool:
    """Whether only assertions leave a loop or a block, which the first replica goes on to run alone.

    One that fails ends the replica with an error, as before.
    """
    return (
        not isinstance(statement, cst.SimpleStatementLine)
        and not leaves_turn(statement)
        and next(nodes_of(statement, cst.Raise), None) is None
        and not any(code(call.func) in EXITS for call in nodes_of(statement, cst.Call))
    )


def _is_same(test: cst.BaseExpression, context: Workspace) -> bool:
    """Whether nothing shows that `test` may differ between the replicas, nor that it asks the world."""
    if context.guards.asks(test) or own_value(test, context) is not None:
        return False
    return all(
        last_part(call.func) in PURE_CALLS or code(call.func) in ("any", "all", "callable")
        for call in context.below(test, cst.Call)
    )
