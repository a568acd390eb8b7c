"""Which expressions of a file are modules of torch, in whichever file of the project these are made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from migrate.reading.calls.kinds import MODULE, Instance, Value
from migrate.reading.calls.scopes import ModuleScope, Scope
from migrate.reading.values.words import MODULE_BASE

if TYPE_CHECKING:
    from migrate.reading.calls.analysis import Analysis


def is_module(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether all that `node` may be, as far as that is known, are modules."""
    values = analysis.evaluator.values(node, scope)
    return bool(values) and all(_is_one(value, analysis) for value in values)


def models_of(analysis: Analysis, top: ModuleScope) -> Iterator[ast.expr]:
    """Yield the expressions of a file that make, call, ask or hand on a module."""
    for root in top.all_roots:
        for region in analysis.regions(root):
            for call, scope in region.calls:
                for node in (call, *_in_call(call)):
                    if is_module(node, scope, analysis):
                        yield node


def _in_call(call: ast.Call) -> Iterator[ast.expr]:
    """Yield what is called, what that is an attribute of, and what is handed to it."""
    for node in (call.func, *call.args, *(one.value for one in call.keywords)):
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute | ast.Subscript):
            yield inner
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner


def _is_one(value: Value, analysis: Analysis) -> bool:
    if not isinstance(value, Instance):
        return value == MODULE
    return any(MODULE_BASE.match(base) for base in analysis.evaluator.external_bases(value.of))
