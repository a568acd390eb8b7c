"""Optimizers that are made after a model has moved to the accelerator, in whatever function it did."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from migrate.reading.accelerators.asked import is_module
from migrate.reading.accelerators.programs import programs_of
from migrate.reading.calls.analysis import Analysis
from migrate.reading.calls.callers import callers_of
from migrate.reading.calls.kinds import External
from migrate.reading.calls.scopes import Function, ModuleScope, Scope
from migrate.reading.values.words import MODEL, TORCH_OPTIMIZER


@dataclass(frozen=True)
class Moved:
    """Which calls come after the move of a model, on every way that leads to them.

    Args:
        analysis: of the project.
    """

    analysis: Analysis
    _known: dict[Scope, bool] = field(default_factory=dict)

    def optimizers(self, top: ModuleScope) -> Iterator[ast.Call]:
        """Yield the constructions of optimizers of a file before which a helper or a caller moves a model."""
        if b"optim" not in top.module.data:
            return
        for root in top.all_roots:
            for region in self.analysis.regions(root):
                for call, scope in region.calls:
                    if self._is_optimizer(call, scope) and self._before(call, scope, frozenset()):
                        yield call

    def _before(self, call: ast.Call, scope: Scope, seen: frozenset[Scope]) -> bool:
        """Whether a model has moved before `call`: above it in its function, or above all calls of that."""
        if any(
            _place(one) < _place(call) and not _is_around(one, call) and self._moves(one, at)
            for one, at in self._calls(scope)
        ):
            return True
        if not isinstance(scope, Function) or scope in seen:
            return False
        callers = callers_of(self.analysis).get(scope, ())
        return bool(callers) and all(
            self._before(one, at, seen | {scope}) for one, at in callers if at is not scope
        )

    def _moves(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `call`, or a function that it runs, moves a model."""
        functions = self.analysis.running[call].functions
        return self._moves_model(call, scope) or any(
            self._has_move(one) for one in programs_of(self.analysis).run_from(functions)
        )

    def _has_move(self, scope: Scope) -> bool:
        if scope not in self._known:
            self._known[scope] = isinstance(scope, Function) and any(
                self._moves_model(call, at) for call, at in self._calls(scope)
            )
        return self._known[scope]

    def _moves_model(self, call: ast.Call, scope: Scope) -> bool:
        function = call.func
        if not isinstance(function, ast.Attribute):
            return False
        return programs_of(self.analysis).is_move(call, scope) and self._is_model(
            function.value, scope
        )

    def _is_model(self, node: ast.expr, scope: Scope) -> bool:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if MODEL.fullmatch(name):
                return True
        return is_module(node, scope, self.analysis)

    def _calls(self, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
        for root in scope.roots:
            for region in self.analysis.regions(root):
                yield from region.calls

    def _is_optimizer(self, call: ast.Call, scope: Scope) -> bool:
        values = self.analysis.evaluator.values(call.func, scope)
        names = [value.name for value in values if isinstance(value, External)]
        return any(TORCH_OPTIMIZER.fullmatch(name) for name in names)


@lru_cache(maxsize=2)
def moved_of(analysis: Analysis) -> Moved:
    """Return what has moved before which call; found once, for all files."""
    return Moved(analysis)


def _place(call: ast.Call) -> tuple[int, int]:
    return call.lineno, call.col_offset


def _is_around(one: ast.Call, call: ast.Call) -> bool:
    """Whether `call` is an argument of `one`, which so runs after it."""
    return (one.end_lineno or 0, one.end_col_offset or 0) >= (
        call.end_lineno or 0,
        call.end_col_offset or 0,
    )
