"""Indices of devices that a project computes with, also in a function of another file that gets the index."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.words import RANK_NAME
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.contents import Item
from migrate.model.calls.devices import kind_of
from migrate.model.calls.kind import Kind
from migrate.model.calls.kinds import DeviceValue
from migrate.model.calls.scopes import Scope
from migrate.model.objects.parts import assigned_or_passed

# Maximum number of expressions followed from the computations to the indices.
MOST = 2000
# Functions whose arguments are numbers.
OF_NUMBERS = frozenset({"numpy.random.seed", "random.seed", "torch.manual_seed"})

Located = Mapping[Path, frozenset[tuple[int, int]]]


@lru_cache(maxsize=2)
def device_numbers(analysis: Analysis) -> Located:
    """Return the ends of the indices of devices, by file, that some code of the project computes with.

    The index is followed from the computation through assignments and parameters to the place that makes it.
    """
    ends: dict[Path, set[tuple[int, int]]] = defaultdict(set)
    waiting = [item for item in _used_as_numbers(analysis) if _is_index(*item, analysis)]
    seen: set[tuple[int, int]] = set()
    followed: set[tuple[str, int]] = set()
    while waiting and len(seen) < MOST:
        node, scope = waiting.pop()
        if (id(node), id(scope)) in seen:
            continue
        seen.add((id(node), id(scope)))
        variable = ast.unparse(node), id(scope)
        line, offset = node.end_lineno or 0, node.end_col_offset or 0
        ends[scope.module.path].add((line, scope.module.column(line, offset)))
        if variable in followed:
            continue
        followed.add(variable)
        waiting += _sources(node, scope, analysis)
    return {path: frozenset(of_file) for path, of_file in ends.items()}


def _sources(node: ast.expr, scope: Scope, analysis: Analysis) -> list[Item]:
    """Return the expressions that the variable, or the choice, `node` may get its value from."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            return [(body, scope), (orelse, scope)]
        case ast.Name(id=name):
            return [*assigned_or_passed(analysis.evaluator.bindings_of(name, scope), analysis)]
        case ast.Attribute(value=value, attr=name):
            members = analysis.evaluator.members_of(value, name, scope)
            return [*assigned_or_passed(members, analysis)]
    return []


def may_be_number(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether the device `node` may also be an index that stays a number, as the project computes with it."""
    numbers = device_numbers(analysis)
    values = analysis.evaluator.values(node, scope)
    if not numbers or not _is_index(node, scope, analysis) or kind_of(values) is Kind.INDEX:
        return False
    waiting: list[Item] = [(node, scope)]
    seen: set[int] = set()
    while waiting and len(seen) < MOST:
        value, at = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        end = at.module.column(value.end_lineno or 0, value.end_col_offset or 0)
        kept = (value.end_lineno or 0, end) in numbers.get(at.module.path, ())
        if kept and kind_of(analysis.evaluator.values(value, at)) is Kind.INDEX:
            return True
        waiting += _sources(value, at, analysis)
    return False


def _is_index(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether `node` is a variable that may hold the index of a device."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    values = analysis.evaluator.values(node, scope)
    return any(isinstance(value, DeviceValue) and value.kind is Kind.INDEX for value in values)


def _used_as_numbers(analysis: Analysis) -> Iterator[Item]:
    """Yield the expressions of a project that must be numbers: operands, what is compared with a number."""
    for top in analysis.scopes.values():
        yield from top.computed
        for compared, scope in top.compared:
            sides = [compared.left, *compared.comparators]
            if any(
                isinstance(side, ast.Constant) and isinstance(side.value, int) for side in sides
            ):
                yield from ((side, scope) for side in sides)
    for call, scope in analysis.evaluator.calls():
        if call not in analysis.running or analysis.running[call].functions:
            continue
        for keyword in call.keywords:
            if RANK_NAME.fullmatch(keyword.arg or "") and analysis.evaluator.externals(
                call.func, scope
            ) - {"functools.partial"}:
                yield keyword.value, scope
        if call.args and analysis.evaluator.externals(call.func, scope) & OF_NUMBERS:
            yield call.args[0], scope
