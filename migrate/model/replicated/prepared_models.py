"""Features of Accelerate that scripts use and XLA does not have: a wrapped model, a device to load to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from migrate.model.calls.kinds import MOVES_INPUTS
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import ModuleScope, Scope
from migrate.model.objects.parts import assigned_or_passed
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

WRAPPER = "DistributedDataParallel"  # calls by which a script wraps a model itself
DEVICE = re.compile(r"accelerate\.(\w+\.)*(Accelerator|AcceleratorState|PartialState)\(\)\.device")


def unwrapped_modules(analysis: Analysis, top: ModuleScope) -> Iterator[ast.Attribute]:
    """Yield each `model.module` of a model that Accelerate prepared, in a file that it runs.

    A model whose class has its own `module` does not count.
    """
    evaluator = analysis.evaluator
    for call, scope in analysis.calls_in(top):
        if any(name.endswith(WRAPPER) for name in evaluator.externals(call.func, scope)):
            return
    seen: set[int] = set()
    for root, scope in _expressions(analysis, top):
        for node in walk(root):
            if not isinstance(node, ast.Attribute) or node.attr != "module" or id(node) in seen:
                continue
            seen.add(id(node))
            if MOVES_INPUTS not in evaluator.values(node.value, scope):
                continue
            if not any(True for _ in evaluator.members_of(node.value, "module", scope)):
                yield node


def loads_to_accelerator(analysis: Analysis, top: ModuleScope) -> Iterator[ast.Call]:
    """Yield the calls whose `map_location`, or second argument, is the device of Accelerate, or its name."""
    for call, scope in analysis.calls_in(top):
        if not last_part(call.func).startswith("load"):
            continue
        named = [keyword.value for keyword in call.keywords if keyword.arg == "map_location"]
        places = named or call.args[1:2]
        if any(_is_device(place, scope, analysis) for place in places):
            yield call


def _is_device(place: ast.expr, scope: Scope, analysis: Analysis, depth: int = 4) -> bool:
    """Whether `place` is the device of Accelerate, or a text with it: `f"{device}"`, `str(device)`."""
    if any(DEVICE.fullmatch(name) for name in analysis.evaluator.externals(place, scope)):
        return True
    match place:
        case ast.JoinedStr(values=[ast.FormattedValue(value=of), *_]):
            return _is_device(of, scope, analysis, depth)
        case ast.Attribute(value=of, attr="type"):
            return _is_device(of, scope, analysis, depth)
        case ast.Call(args=[of]) if last_part(place.func) in ("str", "device", "format"):
            return _is_device(of, scope, analysis, depth)
        case ast.Dict(values=parts):
            return any(_is_device(part, scope, analysis, depth) for part in parts)
        case ast.Name(name) if depth:
            return any(
                _is_device(value, at, analysis, depth - 1)
                for value, at in assigned_or_passed(
                    analysis.evaluator.bindings_of(name, scope), analysis
                )
            )
    return False


def _expressions(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the calls of a file, and the values that it assigns and returns."""
    yield from analysis.calls_in(top)
    for scope in (top, *top.functions):
        for bindings in scope.bindings.values():
            for binding in bindings:
                if binding.value is not None and binding.kind == "value":
                    yield binding.value, binding.scope
    for function in top.functions:
        for value in function.returns:
            yield value, function
