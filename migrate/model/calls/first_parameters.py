"""Parameters that hold on the first replica alone: calls pass a rank test, `average(model, rank == 0)`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.model.calls.callers import callers_of
from migrate.model.calls.passing import passed_by
from migrate.model.calls.rank_tests import (
    differs,
    first_attributes,
    first_functions,
    lets_first_pass,
)
from migrate.model.calls.scopes import Function, Scope, ValueBinding

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

Parameter = tuple[Function, str]


@lru_cache(maxsize=2)
def first_parameters(analysis: Analysis) -> Mapping[Parameter, bool]:
    """Return the parameters for which a call passes a test that only some replicas pass.

    Returns:
        The value is whether all calls pass a test for the first replica, or True, as for a single process.
    """
    if not any(
        _differs(node, scope, analysis, {})
        for calls in callers_of(analysis).values()
        for call, scope in calls
        for node in (*call.args, *(keyword.value for keyword in call.keywords))
    ):
        return {}
    passed: dict[Parameter, list[tuple[ast.expr | None, Scope]]] = {}
    for function, calls in callers_of(analysis).items():
        for call, _ in calls:
            given = {
                argument.name: (argument.node, argument.scope)
                for argument in passed_by(analysis.running[call], analysis.evaluator)
                if argument.to is function
            }
            for name in function.all_parameters[function.is_bound :]:
                default, _ = function.declared.get(name, (None, ()))
                passed.setdefault((function, name), []).append(given.get(name, (default, function)))
    known: dict[Parameter, bool] = {}
    while True:
        new = {
            parameter
            for parameter, arguments in passed.items()
            if parameter not in known
            and any(_differs(node, scope, analysis, known) for node, scope in arguments)
        }
        if not new:
            break
        known |= dict.fromkeys(new, True)
    return {
        parameter: all(
            _is_true(node) or _is_first(node, scope, analysis, known)
            for node, scope in passed[parameter]
        )
        for parameter in known
    }


def _differs(
    node: ast.expr | None, scope: Scope, analysis: Analysis, known: Mapping[Parameter, bool]
) -> bool:
    """Whether an argument is a test that only some replicas pass, or a name of its result."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
        return differs(node, scope, analysis.evaluator)
    return _is_first(node, scope, analysis, known) or (
        isinstance(node, ast.Name)
        and any(
            _differs(binding.value, binding.scope, analysis, known)
            for binding in analysis.evaluator.bindings_of(node.id, scope)
            if binding.kind == "value" and isinstance(binding.value, ast.Compare)
        )
    )


def _is_first(
    node: ast.expr | None, scope: Scope, analysis: Analysis, known: Mapping[Parameter, bool]
) -> bool:
    """Whether an argument is a test that the first replica alone passes, or a name of its result."""
    if node is None:
        return False
    if lets_first_pass(node, scope, analysis):
        return True
    if isinstance(node, ast.Call) and node in analysis.running:
        functions = analysis.running[node].functions
        return bool(functions) and first_functions(analysis).issuperset(functions)
    if not isinstance(node, ast.Name):
        return False
    bindings = [*analysis.evaluator.bindings_of(node.id, scope)]
    return bool(bindings) and all(
        (
            binding.kind == "value"
            and not isinstance(binding.value, ast.Name)
            and _is_first(binding.value, binding.scope, analysis, known)
        )
        or (
            binding.kind == "param"
            and isinstance(binding.scope, Function)
            and (binding.scope, binding.name or node.id) in known
        )
        for binding in bindings
    )


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


@lru_cache(maxsize=2)
def all_first_attributes(analysis: Analysis) -> frozenset[str]:
    """Return the attributes that hold on the first replica alone, those that keep such a parameter included.

    Example: `self.leads = leads` of `Meter(rank == 0)`.
    """
    bindings: dict[str, list[ValueBinding]] = defaultdict(list)
    for top in analysis.scopes.values():
        for name, assigned in top.assigned.items():
            bindings[name] += [binding for _, binding in assigned]
        for class_ in top.classes:
            for name, of_class in class_.attributes.items():
                bindings[name] += of_class
    known = {parameter for parameter, alone in first_parameters(analysis).items() if alone}
    kept = {
        name
        for name, of_name in bindings.items()
        if known and all(_keeps_one_of(binding, known) for binding in of_name)
    }
    return first_attributes(analysis) | kept


def _keeps_one_of(binding: ValueBinding, parameters: Set[Parameter]) -> bool:
    """Whether a binding is the parameter of its function: `self.leads = leads`."""
    value = binding.value
    if binding.kind == "item" and isinstance(value, ast.Tuple) and binding.index < len(value.elts):
        value = value.elts[binding.index]  # `self.module, self.leads = module, leads`
    elif binding.kind != "value":
        return False
    return isinstance(value, ast.Name) and (binding.scope, value.id) in parameters
