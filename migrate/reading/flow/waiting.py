"""Functions that end the graph, and functions that begin one with a collective: DDP's broadcast."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.reading.calls.callers import reaching
from migrate.reading.calls.kinds import External
from migrate.reading.calls.scopes import Function
from migrate.reading.replicas.rank_tests import last_part
from migrate.reading.values.words import WAITS, WRAPPERS

if TYPE_CHECKING:
    from migrate.reading.calls.analysis import Analysis
    from migrate.reading.calls.scopes import Scope

LAST_PARTS = frozenset(name.rpartition(".")[2] for name in WAITS)


@lru_cache(maxsize=2)
def waiting_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of a project that wait for the device, themselves or by what they run."""
    first: Mapping[Function, bool] = {
        function: True
        for function, call, scope in _calls(analysis)
        if last_part(call.func) in LAST_PARTS
        and any(name in WAITS for name in _names(call, scope, analysis))
    }
    return frozenset(reaching(analysis, first))


@lru_cache(maxsize=2)
def wrapping_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of a project that wrap a model, whose weights are broadcast then."""
    first: Mapping[Function, bool] = {
        function: True
        for function, call, scope in _calls(analysis)
        if any(name.endswith(WRAPPERS) for name in _names(call, scope, analysis))
    }
    return frozenset(reaching(analysis, first))


def _calls(analysis: Analysis) -> Iterator[tuple[Function, ast.Call, Scope]]:
    for top in analysis.scopes.values():
        for function in top.functions:
            for region in analysis.regions(function.region):
                for call, scope in region.calls:
                    yield function, call, scope


def _names(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[str]:
    for value in analysis.evaluator.values(call.func, scope):
        if isinstance(value, External):
            yield value.name
