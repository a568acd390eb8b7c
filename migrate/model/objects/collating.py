"""Functions that make a batch of samples: the `collate_fn` of a DataLoader, and the functions it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.words import COLLATES
from migrate.model.calls.callers import callers_of
from migrate.model.calls.kinds import ClassInstance, Partial
from migrate.model.calls.rank_tests import is_none
from migrate.model.calls.scopes import Function

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.calls.scopes import Scope


# Keywords that pass such a function to a loader, or to a trainer that makes one.
GIVEN_AS = frozenset({"collate_fn", "data_collator"})


@lru_cache(maxsize=2)
def collating_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions and methods of a project that make batches.

    A function counts if some call passes it as `collate_fn`, or if such a function passes its samples to it.
    The name decides only if no call of the function is known.
    """
    waiting = [*_handed(analysis), *_named(analysis)]
    scopes: set[Scope] = set()
    while waiting:
        function = waiting.pop()
        if function not in scopes:
            scopes.add(function)
            waiting += _given_samples(function, analysis)
    return frozenset(scopes)


def settings_given(function: Function, analysis: Analysis) -> tuple[frozenset[str], ...]:
    """Return the parameters of its object's constructor that each known construction passes, not None.

    Args:
        function: a method that makes batches, as `__call__` of a class whose object is a `collate_fn`.
        analysis: its project.
    """
    init = analysis.evaluator.method(function.owner, "__init__") if function.owner else None
    if init is None:
        return ()
    names = init.parameters[1:]
    return tuple(
        frozenset(
            [
                *(n for n, value in zip(names, call.args, strict=False) if not is_none(value)),
                *(k.arg for k in call.keywords if k.arg and not is_none(k.value)),
            ]
        )
        for call, _ in callers_of(analysis).get(init, ())
    )


@lru_cache(maxsize=2)
def gathering_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions that make batches, with all functions that these run."""
    waiting: list[Scope] = [*collating_of(analysis)]
    scopes: set[Scope] = set()
    while waiting:
        function = waiting.pop()
        if isinstance(function, Function) and function not in scopes:
            scopes.add(function)
            for region in analysis.regions(function.region):
                for call, _ in region.calls:
                    waiting += analysis.running[call].functions
    return frozenset(scopes)


def _named(analysis: Analysis) -> Iterator[Function]:
    """Yield the functions without a known call whose name says that they make batches."""
    callers = callers_of(analysis)
    for scope in analysis.scopes.values():
        for function in scope.functions:
            of_class = function.owner is not None and function.name == "__call__"
            name = function.owner.name if of_class and function.owner else function.name
            if COLLATES.search(name) and function not in callers:
                yield function


def _handed(analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that some call passes for making batches."""
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
                    case ClassInstance(of):
                        method = evaluator.method(of, "__call__")
                        if method is not None:
                            yield method


def _given_samples(function: Function, analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that `function` calls with its samples, or with a list of parts of them."""
    names = set(function.parameters)
    calls = [call for region in analysis.regions(function.region) for call, _ in region.calls]
    inner = [
        part
        for definition in function.definitions
        for part in ast.walk(definition)
        if isinstance(part, ast.comprehension)
    ]
    for _ in range(2):  # a name may be bound to another one
        for name, bindings in function.bindings.items():
            if any(b.value is not None and _holds_samples(b.value, names) for b in bindings):
                names.add(name)
        for part in inner:
            if isinstance(part.target, ast.Name) and _holds_samples(part.iter, names):
                names.add(part.target.id)
    filled = {
        _holder(call.func.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "extend")
    } - {""}
    for call in calls:
        if any(_holds_samples(arg, names) or _holder(arg) in filled for arg in call.args):
            yield from analysis.running[call].functions


def _holder(value: ast.expr) -> str:
    """Return the last word of what holds a list: `boxes` of `target.boxes` and of `batch["boxes"]`."""
    match value:
        case (
            ast.Name(name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(str(name)))
        ):
            return name
    return ""


def _holds_samples(value: ast.expr, names: Set[str]) -> bool:
    """Whether `value` is one of `names` or holds parts of these: `batch[0]`, `[x.ids for x in batch]`."""
    match value:
        case ast.Name(name):
            return name in names
        case ast.Subscript(of) | ast.Starred(of):
            return _holds_samples(of, names)
        case ast.ListComp(elt, [first, *_]) | ast.GeneratorExp(elt, [first, *_]):
            chunk = isinstance(elt, ast.Subscript) and _holds_samples(elt, names)
            return chunk or _holds_samples(first.iter, names)
        case ast.Call(ast.Name("list" | "tuple" | "zip" | "sorted" | "map"), args):
            return any(_holds_samples(argument, names) for argument in args)
    return False
