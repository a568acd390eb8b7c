"""Constants that an expression may be, followed through names, parameters and files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from migrate.model.calls.scopes import Function, Scope
from migrate.model.objects.objects import objects_of

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

DEEPEST = 4
MOST = 64  # maximum number of texts of an f-string


def constants(
    node: ast.expr, scope: Scope, analysis: Analysis, depth: int = DEEPEST
) -> Iterator[object]:
    """Yield the constants that `node` may be; nothing for unknown values."""
    match node:
        case ast.Constant(value=value):
            yield value
        case ast.IfExp(body=one, orelse=other):
            yield from constants(one, scope, analysis, depth)
            yield from constants(other, scope, analysis, depth)
        case ast.JoinedStr(values=parts):
            texts = [list(constants(part, scope, analysis, depth)) for part in parts]
            for number, chosen in enumerate(product(*texts)):
                if number < MOST:
                    yield "".join(str(part) for part in chosen)
        case ast.FormattedValue(value=part):
            yield from constants(part, scope, analysis, depth)
        case ast.BinOp(left=one, op=ast.Add(), right=other):
            for left in constants(one, scope, analysis, depth):
                for right in constants(other, scope, analysis, depth):
                    if isinstance(left, str) and isinstance(right, str):
                        yield left + right
        case ast.Name(id=name) if depth:
            for binding in analysis.evaluator.bindings_of(name, scope):
                if binding.kind == "value" and binding.value is not None:
                    yield from constants(binding.value, binding.scope, analysis, depth - 1)
                elif binding.kind == "param" and isinstance(binding.scope, Function):
                    yield from _of_parameter(binding.scope, name, analysis, depth)


def _of_parameter(
    function: Function, name: str, analysis: Analysis, depth: int
) -> Iterator[object]:
    arguments = objects_of(analysis).arguments(function, name)
    passed = [
        (argument.node, argument.scope) for argument in arguments if argument.node is not None
    ]
    for node, scope in passed:
        yield from constants(node, scope, analysis, depth - 1)
    default, _ = function.declared.get(name, (None, []))
    if default is not None and not passed:
        yield from constants(default, function.parent or function, analysis, 0)
