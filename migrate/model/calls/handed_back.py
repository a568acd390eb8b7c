"""Parameters whose tensor a function returns, or computes its result from: `return x - x.mean()`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable

from migrate.catalogue.words import DESCRIBES, ENDING_METHODS
from migrate.model.calls.scopes import Function

HandedBack = frozenset[str | int]


def handed_back(function: Function) -> HandedBack:
    """Return the parameters that every result of `function` is, or is computed from by arithmetic.

    Each parameter is listed by its name and by its argument index (without `self`). What reads a value on
    the way, as `x.cpu()` or `float(x)`, hands back no tensor.
    """
    if not function.returns:
        return frozenset()
    assigned = _assigned(function)
    names = function.parameters
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    parameters = {*names, *function.all_parameters[len(function.parameters) :]}
    sources = [_made_of(value, assigned, parameters, frozenset()) for value in function.returns]
    if not all(sources):
        return frozenset()
    common = set.intersection(*sources)
    return frozenset(common | {index for index, name in enumerate(names) if name in common})


def _assigned(function: Function) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for definition in function.definitions:
        for node in ast.walk(definition):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        values[target.id].append(node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                values[node.target.id].append(ast.BinOp(node.target, node.op, node.value))
    return values


def _made_of(
    value: ast.expr,
    assigned: dict[str, list[ast.expr]],
    parameters: set[str],
    seen: frozenset[str],
) -> set[str]:
    """Return the parameters that `value` is computed from in each case; empty if one may be read."""
    if isinstance(value, ast.Name):
        if value.id in seen:
            return {value.id} if value.id in parameters else set()
        within = seen | {value.id}
        sources = [_made_of(v, assigned, parameters, within) for v in assigned.get(value.id, ())]
        if value.id in parameters:
            return {value.id} if all(value.id in names for names in sources) else set()
        return set.intersection(*sources) if sources else set()
    if isinstance(value, ast.BinOp):
        return _any_of((value.left, value.right), assigned, parameters, seen)
    if isinstance(value, ast.UnaryOp):
        return _made_of(value.operand, assigned, parameters, seen)
    if isinstance(value, ast.IfExp):
        left = _made_of(value.body, assigned, parameters, seen)
        return left & _made_of(value.orelse, assigned, parameters, seen)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in ENDING_METHODS or value.func.attr in DESCRIBES:
            return set()
        if isinstance(value.func.value, ast.Name) and value.func.value.id in ("torch", "F"):
            return _any_of(value.args, assigned, parameters, seen)
        return _made_of(value.func.value, assigned, parameters, seen)
    return set()


def _any_of(
    values: Iterable[ast.expr],
    assigned: dict[str, list[ast.expr]],
    parameters: set[str],
    seen: frozenset[str],
) -> set[str]:
    return {name for value in values for name in _made_of(value, assigned, parameters, seen)}
