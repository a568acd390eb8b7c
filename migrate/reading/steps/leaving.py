"""Statements that leave the turn of a loop, or the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import CHECKS, EXITS
from migrate.reading.flow.reads import is_log
from migrate.syntax.tree import code, last_part, nodes_of
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.script import Script


Kinds = type[cst.CSTNode] | tuple[type[cst.CSTNode], ...]


def leaves_turn(node: cst.CSTNode) -> bool:
    """Whether running `node` may leave the turn of the loop around it, or the function."""
    return _leaves(node, (cst.Return, cst.Yield), (cst.Break, cst.Continue))


def leaves_loop(node: cst.CSTNode) -> bool:
    """Whether running `node` may end the loop around it: by `break` or `return`."""
    return _leaves(node, cst.Return, cst.Break)


def _leaves(node: cst.CSTNode, anywhere: Kinds, of_loop: Kinds, *, in_loop: bool = False) -> bool:
    """Whether `node` has a statement of `anywhere`, or one of `of_loop` outside of an inner loop."""
    if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
        return False
    if isinstance(node, anywhere):
        return True
    if isinstance(node, of_loop):
        return not in_loop
    inside = in_loop or isinstance(node, cst.For | cst.While)
    return any(_leaves(child, anywhere, of_loop, in_loop=inside) for child in children(node))


def yields(node: cst.CSTNode) -> bool:
    """Whether running `node` yields a value to the consumer of a generator, which continues at any time."""
    if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda | cst.GeneratorExp):
        return False
    return isinstance(node, cst.Yield) or any(yields(child) for child in children(node))


def ends_program(node: cst.CSTNode) -> bool:
    """Whether running `node` may end the program: `sys.exit(1)`, `raise`, `assert`."""
    if any(code(call.func) in EXITS for call in nodes_of(node, cst.Call)):
        return True
    kinds: tuple[type[cst.CSTNode], ...] = (cst.Raise, cst.Assert)
    return any(next(nodes_of(node, kind), None) is not None for kind in kinds)


def may_stop(node: cst.CSTNode, context: Script) -> bool:
    """Whether the statements after `node` may not run once `node` has.

    `node` leaves the turn or the function, raises, asserts, ends the program, or calls a function that does
    just that. An unknown function is judged by its name: `check_finite(loss)`.
    """
    if leaves_turn(node) or ends_program(node):
        return True
    lines = nodes_of(node, cst.Expr)
    calls = [line.value for line in lines if isinstance(line.value, cst.Call)]
    return any(not is_log(call, context) and _stops(call, context) for call in calls)


def _stops(call: cst.Call, context: Script) -> bool:
    if context.run_by(call):
        return context.effects.ends(call)
    unknown = not (context.qualified_name(call.func) or "").startswith("torch.")
    return unknown and CHECKS.fullmatch(last_part(call.func)) is not None


def never_reached(node: cst.If, context: Script) -> list[cst.BaseStatement]:
    """Return the statements that leave below an `if` whose body, which always runs, leaves the function.

    Empty if the body has any other statement: that case is left to the author.
    """
    block = context.parent(node)
    if not isinstance(block, cst.IndentedBlock) or not _is_way_out(node.body.body[-1]):
        return []
    after = block.body[block.body.index(node) + 1 :]
    return list(after) if all(_only_is_way_out(statement) for statement in after) else []


def _is_way_out(statement: cst.CSTNode) -> bool:
    last = statement.body[-1] if isinstance(statement, cst.SimpleStatementLine) else statement
    return isinstance(last, cst.Return | cst.Raise)


def _only_is_way_out(statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.SimpleStatementLine):
        return len(statement.body) == 1 and _is_way_out(statement)
    return (
        isinstance(statement, cst.If)
        and statement.orelse is None
        and "cuda" not in code(statement.test)
        and all(_only_is_way_out(inner) for inner in statement.body.body)
    )
