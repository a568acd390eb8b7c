"""Calls that are made for each object that another one holds, which may hold none yet."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from migrate.reading.calls.analysis import Analysis
    from migrate.reading.calls.scopes import Scope

EMPTIES = frozenset({"OrderedDict", "deque", "dict", "list", "set"})


def is_for_each_held(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` is made for each element of an attribute that begins empty: `for m in self.meters`."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    bound = scope.bindings.get(receiver.id, ()) if isinstance(receiver, ast.Name) else ()
    return any(
        binding.kind == "element" and _begins_empty(binding.value, scope, analysis)
        for binding in bound
    )


def _begins_empty(container: ast.expr | None, scope: Scope, analysis: Analysis) -> bool:
    match container:
        case ast.Call(func=ast.Attribute(value=inner, attr="values" | "items")):
            container = inner
    if not isinstance(container, ast.Attribute):
        return False
    made = [binding.value for binding in analysis.evaluator.origins(container, scope)]
    return bool(made) and all(map(_is_empty, made))


def _is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict(keys=held) | ast.List(elts=held):
            return not held
        case ast.Call(func=func, args=args):
            return _name(func) == "defaultdict" or (_name(func) in EMPTIES and not args)
    return False


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
