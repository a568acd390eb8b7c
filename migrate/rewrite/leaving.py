"""Statements that leave the turn of a loop, or the program."""

from __future__ import annotations

import libcst as cst

from migrate.rewrite.tree import code, nodes_of

EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})


def leaves_turn(node: cst.CSTNode) -> bool:
    """Whether running `node` may leave the turn of the loop around it, or the function."""
    return _leaves(node, in_loop=False)


def _leaves(node: cst.CSTNode, *, in_loop: bool) -> bool:
    if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
        return False
    if isinstance(node, cst.Return | cst.Yield):
        return True
    if isinstance(node, cst.Break | cst.Continue):
        return not in_loop
    inside = in_loop or isinstance(node, cst.For | cst.While)
    return any(_leaves(child, in_loop=inside) for child in node.children)


def ends_program(node: cst.CSTNode) -> bool:
    """Whether running `node` may end the program: `sys.exit(1)`, `raise`, `assert`."""
    if any(code(call.func) in EXITS for call in nodes_of(node, cst.Call)):
        return True
    kinds: tuple[type[cst.CSTNode], ...] = (cst.Raise, cst.Assert)
    return any(next(nodes_of(node, kind), None) is not None for kind in kinds)
