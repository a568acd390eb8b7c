"""Calls that make an object, followed back through its names and attributes of `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from migrate.catalogue.words import MODULE_METHODS
from migrate.model.calls.scopes import Scope

if TYPE_CHECKING:
    from migrate.model.calls.values import Evaluator


def same_as(node: ast.expr) -> ast.expr | None:
    """Return the module of `module.half()`, which returns the module itself."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in MODULE_METHODS else None
    return None


def made_by(
    model: ast.expr, scope: Scope, evaluator: Evaluator
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that may have made `model`, each with its scope."""
    seen: set[int] = set()
    waiting: list[tuple[ast.expr, Scope]] = [(model, scope)]
    while waiting:
        node, at = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case ast.Call():
                yield node, at
                waiting += [(arg, at) for arg in node.args[:1]]  # what it wraps
                if (inner := same_as(node)) is not None:
                    waiting.append((inner, at))
            case ast.IfExp(body=one, orelse=other):
                waiting += [(one, at), (other, at)]
            case ast.Name() | ast.Attribute():
                waiting += _values(node, at, evaluator)


def bound_to(node: ast.expr, scope: Scope, evaluator: Evaluator) -> Iterator[ast.expr]:
    """Yield `node`, and the values that it is bound to if it is a name."""
    yield node
    if isinstance(node, ast.Name):
        yield from (value for value, _ in _values(node, scope, evaluator))


def _values(
    node: ast.Name | ast.Attribute, scope: Scope, evaluator: Evaluator
) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the values assigned to a name or an attribute, each with its scope."""
    for origin in evaluator.origins(node, scope):
        if origin.value is not None:
            yield origin.value, origin.scope
