"""Defaults of parameters that read a constant of the script: the interface has the constant's value."""

from __future__ import annotations

import ast
import builtins

from migrate.train.slice.text import FunctionNode, loads


def constants_of(tree: ast.Module) -> dict[str, ast.expr]:
    """Name → literal of each constant that a script assigns once, at its top level."""
    constants: dict[str, ast.expr] = {}
    assigned: list[str] = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
            assigned.append(statement.id)
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            pairs = [
                pair for target in statement.targets for pair in _pairs(target, statement.value)
            ]
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            pairs = _pairs(statement.target, statement.value)
        else:
            continue
        constants |= {name: value for name, value in pairs if _is_literal(value)}
    return {name: value for name, value in constants.items() if assigned.count(name) == 1}


def with_plain_defaults(text: str, constants: dict[str, ast.expr]) -> str:
    """Return functions with the values of the constants that their defaults read.

    Args:
        text: definitions of functions and classes.
        constants: those of the script.

    Returns:
        The text, or "" if a default reads something else: Python would look for it where the text stands.
    """
    tree = ast.parse(text)
    defaults = [
        default
        for node in ast.walk(tree)
        if isinstance(node, FunctionNode)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults))
    ]
    lines = text.splitlines(keepends=True)
    for default in sorted(defaults, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        names = loads(default) - set(vars(builtins))
        if not names:
            continue
        if names - set(constants) or default.lineno != default.end_lineno:
            return ""
        value = ast.unparse(_Filled(constants).visit(default))
        line = lines[default.lineno - 1].encode()
        line = line[: default.col_offset] + value.encode() + line[default.end_col_offset :]
        lines[default.lineno - 1] = line.decode()
    return "".join(lines)


class _Filled(ast.NodeTransformer):
    """Puts the constants' values in place of their names."""

    def __init__(self, constants: dict[str, ast.expr]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the value of a constant; another name stays."""
        return self._constants.get(node.id, node)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    both = isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List)
    if both and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
        parts = zip(target.elts, value.elts, strict=True)  # type: ignore[attr-defined]
        return [pair for part in parts for pair in _pairs(*part)]
    return []


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True
