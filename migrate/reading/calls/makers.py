"""Which calls make an object: followed back through the names, and the attributes of `self`, that it has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from migrate.reading.calls.kinds import class_around
from migrate.reading.calls.scopes import Binding, Scope
from migrate.reading.values.words import MODULE_METHODS


def same_as(node: ast.expr) -> ast.expr | None:
    """Return the module of `module.half()`, which gives it back."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in MODULE_METHODS else None
    return None


def made_by(model: ast.expr, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that may have made `model`, and where they stand."""
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
                waiting += _values(node, at)


def bound_to(node: ast.expr, scope: Scope) -> Iterator[ast.expr]:
    """Yield `node`, and what it is bound to where it is a name."""
    yield node
    if isinstance(node, ast.Name):
        yield from (value for value, _ in _values(node, scope))


def _values(node: ast.Name | ast.Attribute, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return what is assigned to a name, or to an attribute of `self`, and where."""
    found: list[Binding] = []
    if isinstance(node, ast.Name):
        around: Scope | None = scope
        while around is not None and not found:
            found = around.bindings.get(node.id, [])
            around = around.parent
    elif isinstance(node.value, ast.Name) and node.value.id == "self":
        owner = class_around(scope)
        found = owner.attributes.get(node.attr, []) if owner is not None else []
    return [(one.value, one.scope) for one in found if one.value is not None]
