"""Assertions for a checker of types, where a class of several forms uses what may be None."""

from __future__ import annotations

import ast
from collections.abc import Sequence, Set

from converters.graph.expression import code
from converters.graph.writing.forms.form import is_none, names_stored


def asserted(
    body: Sequence[ast.stmt], optional: Set[str], known: Set[str] = frozenset()
) -> tuple[list[ast.stmt], set[str]]:
    """Statements, with assertions that what may be None is not where it is used, for a checker of types.

    Args:
        body: the statements.
        optional: names that may be None.
        known: those of them that are not, before the statements.

    Returns:
        The statements, and which of the names are known not to be None after them.
    """
    made: list[ast.stmt] = []
    found = set(known)
    for one in body:
        if isinstance(one, ast.If):
            needed = _used(one.test) & optional - found
            there, not_there = _tested(one.test)
            one.body, first = asserted(one.body, optional, found | there)
            one.orelse, second = asserted(one.orelse, optional, found | not_there)
            found = first & second
        elif isinstance(one, ast.For):
            needed = _used(one.iter) & optional - found
            one.body, _ = asserted(one.body, optional, found - set(names_stored(one.body)))
            found -= set(names_stored(one.body))
        else:
            asserts = isinstance(one, ast.Assert)
            needed = set() if asserts else _used(one) & optional - found
            found |= _tested(one.test)[0] if isinstance(one, ast.Assert) else needed
            found -= set(names_stored([one]))
            if isinstance(one, ast.Assign) and not _gives_none(one):
                found |= set(names_stored([one])) & optional
        made += [ast.Assert(code(f"{name} is not None"), None) for name in sorted(needed)]
        made.append(one)
    return made, found


def _gives_none(one: ast.Assign) -> bool:
    """Whether what is assigned may be None, or a module's results, of which one may be."""
    several = isinstance(one.targets[0], ast.Tuple)
    return several or is_none(one.value) or isinstance(one.value, ast.Name)


def _used(tree: ast.AST) -> set[str]:
    """The names that are read, but those that are tested or given on by name."""
    match tree:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return set()
        case ast.keyword(value=ast.Name()):
            return set()
        case ast.Name(id=name, ctx=ast.Load()):
            return {name}
        case ast.Assign(value=ast.Name()):
            return set()
    return {name for child in ast.iter_child_nodes(tree) for name in _used(child)}


def _tested(test: ast.expr) -> tuple[set[str], set[str]]:
    """The names that are not None where a test holds, and where it does not."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()]):
            return {name}, set()
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Is()]):
            return set(), {name}
        case ast.BoolOp(op=ast.And(), values=values):
            return {name for one in values for name in _tested(one)[0]}, set()
    return set(), set()
