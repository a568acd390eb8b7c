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
    statements: list[ast.stmt] = []
    known_now = set(known)
    for statement in body:
        if isinstance(statement, ast.If):
            needed = _used(statement.test) & optional - known_now
            there, not_there = _tested(statement.test)
            statement.body, first = asserted(statement.body, optional, known_now | there)
            statement.orelse, second = asserted(statement.orelse, optional, known_now | not_there)
            known_now = first & second
        elif isinstance(statement, ast.For):
            needed = _used(statement.iter) & optional - known_now
            statement.body, _ = asserted(
                statement.body, optional, known_now - set(names_stored(statement.body))
            )
            known_now -= set(names_stored(statement.body))
        else:
            asserts = isinstance(statement, ast.Assert)
            needed = set() if asserts else _used(statement) & optional - known_now
            known_now |= _tested(statement.test)[0] if isinstance(statement, ast.Assert) else needed
            known_now -= set(names_stored([statement]))
            if isinstance(statement, ast.Assign) and not _gives_none(statement):
                known_now |= set(names_stored([statement])) & optional
        statements += [ast.Assert(code(f"{name} is not None"), None) for name in sorted(needed)]
        statements.append(statement)
    return statements, known_now


def _gives_none(statement: ast.Assign) -> bool:
    """Whether what is assigned may be None, or a module's results, of which one may be."""
    several = isinstance(statement.targets[0], ast.Tuple)
    return several or is_none(statement.value) or isinstance(statement.value, ast.Name)


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
            return {name for value in values for name in _tested(value)[0]}, set()
    return set(), set()
