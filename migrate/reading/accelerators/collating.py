"""Functions that make a batch of samples: what a DataLoader is given as `collate_fn`, and what that calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.reading.calls.callers import callers_of
from migrate.reading.calls.kinds import Instance, Partial
from migrate.reading.calls.scopes import Function
from migrate.reading.values.words import COLLATES

if TYPE_CHECKING:
    from migrate.reading.calls.analysis import Analysis
    from migrate.reading.calls.scopes import Scope


# Keywords by which a loader, or a trainer that makes one, is given such a function.
GIVEN_AS = frozenset({"collate_fn", "data_collator"})


@lru_cache(maxsize=2)
def collating_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions and methods of a project that make batches.

    A function makes them that some call is given as `collate_fn`, or that such a function hands its samples
    to. The name decides only where no call of the function is seen.
    """
    waiting = [*_handed(analysis), *_named(analysis)]
    found: set[Scope] = set()
    while waiting:
        function = waiting.pop()
        if function not in found:
            found.add(function)
            waiting += _given_samples(function, analysis)
    return frozenset(found)


def _named(analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that nothing is seen to call, and whose name says that they make batches."""
    callers = callers_of(analysis)
    for scope in analysis.scopes.values():
        for function in scope.functions:
            of_class = function.owner is not None and function.name == "__call__"
            name = function.owner.name if of_class and function.owner else function.name
            if COLLATES.search(name) and function not in callers:
                yield function


def _handed(analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that some call is given to make batches with."""
    evaluator = analysis.evaluator
    for call, ran in analysis.running.items():
        for keyword in call.keywords:
            if keyword.arg not in GIVEN_AS or isinstance(keyword.value, ast.Constant):
                continue
            for value in evaluator.values(keyword.value, ran.scope):
                match value:
                    case Function():
                        yield value
                    case Partial(of):
                        yield of
                    case Instance(of):
                        method = evaluator.method(of, "__call__")
                        if method is not None:
                            yield method


def _given_samples(function: Function, analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that `function` calls with one of its parameters."""
    for region in analysis.regions(function.region):
        for call, _ in region.calls:
            names = {arg.id for arg in call.args if isinstance(arg, ast.Name)}
            if not names.isdisjoint(function.parameters):
                yield from analysis.running[call].functions
