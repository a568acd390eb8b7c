"""Functions that return a checkpoint, or a part of one: torch.load keeps it on the host."""

from __future__ import annotations

import ast
from collections.abc import Set
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.words import OF_CHECKPOINTS, words
from migrate.model.calls.callers import returning
from migrate.model.calls.kinds import LOADS

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.calls.scopes import Scope

LAST = words("load_state_dict_from_url load_url")
DEEPEST = 8


@lru_cache(maxsize=2)
def loading_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of a project that return contents of a checkpoint, where torch.load put them."""
    return returning(
        analysis, lambda value, function, scopes: _is_loaded(value, function, analysis, scopes)
    )


@lru_cache(maxsize=2)
def loaded_parts_of(analysis: Analysis) -> dict[Scope, frozenset[int]]:
    """Return the functions that return a tuple with parts of a checkpoint, with their positions in it."""
    loading = loading_of(analysis)
    parts: dict[Scope, frozenset[int]] = {}
    for scope in analysis.scopes.values():
        for function in scope.functions:
            positions = frozenset(
                index
                for value in function.returns
                if isinstance(value, ast.Tuple)
                for index, element in enumerate(value.elts)
                if _is_loaded(element, function, analysis, loading)
            )
            if positions:
                parts[function] = positions
    return parts


def _is_loaded(
    node: ast.expr | None, scope: Scope, analysis: Analysis, scopes: Set[Scope], depth: int = 0
) -> bool:
    if depth > DEEPEST:
        return False
    match node:
        case ast.Subscript(value=of):
            return _is_loaded(of, scope, analysis, scopes, depth + 1)
        case ast.IfExp(body=one, orelse=other):
            return any(_is_loaded(n, scope, analysis, scopes, depth + 1) for n in (one, other))
        case ast.Name() | ast.Attribute():
            origins = analysis.evaluator.origins(node, scope)
            return any(
                _is_loaded(origin.value, origin.scope, analysis, scopes, depth + 1)
                for origin in origins
            )
        case ast.Call(func=func):
            name = ast.unparse(func)
            if name in LOADS or name.rpartition(".")[2] in LAST:
                return True
            ran = analysis.running.get(node)
            if ran is not None and not scopes.isdisjoint(ran.functions):
                return True
            if isinstance(func, ast.Attribute) and func.attr in OF_CHECKPOINTS:
                return _is_loaded(func.value, scope, analysis, scopes, depth + 1)
    return False
