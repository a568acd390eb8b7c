"""Callers of a project's functions, direct or indirect, and the rank tests that they pass.

`average(model, rank == 0)` makes a rank test of the parameter of `average`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from migrate.model.calls.passing import passed_by
from migrate.model.calls.rank_tests import (
    differs,
    first_attributes,
    first_functions,
    lets_first_pass,
)
from migrate.model.calls.scopes import Function, Scope, ValueBinding
from migrate.model.project.decided import constants_given, held_in

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

Why = TypeVar("Why")
Callers = Mapping[Function, list[tuple[ast.Call, Scope]]]
Parameter = tuple[Function, str]
EMPTIES = frozenset({"OrderedDict", "deque", "dict", "list", "set"})
MOST_HANDED = 3  # maximum number of calls that hand a constant on


@lru_cache(maxsize=2)
def callers_of(analysis: Analysis) -> Callers:
    """Return the calls of each function of a project, each with its scope."""
    callers: dict[Function, list[tuple[ast.Call, Scope]]] = defaultdict(list)
    for root in analysis.roots:
        for region in analysis.regions(root):
            for call, scope in region.calls:
                for function in analysis.running[call].functions:
                    callers[function].append((call, scope))
    return dict(callers)


def returning(
    analysis: Analysis, is_such: Callable[[ast.expr, Function, Set[Scope]], bool]
) -> frozenset[Scope]:
    """Return the functions of a project that return such a value, also through other functions.

    Args:
        analysis: the project.
        is_such: whether an expression of a function is such a value, given the functions known so far.
    """
    functions = [f for scope in analysis.scopes.values() for f in scope.functions if f.returns]
    scopes: set[Scope] = set()
    while new := [
        function
        for function in functions
        if function not in scopes
        and any(is_such(value, function, scopes) for value in function.returns)
    ]:
        scopes.update(new)
    return frozenset(scopes)


def reaching(
    analysis: Analysis,
    first: Mapping[Function, Why],
    counts: Callable[[ast.Call, Scope, Function], bool] = lambda call, scope, function: True,
    *,
    surely: bool = False,
) -> dict[Function, Why]:
    """Return the functions `first` and all that run one of them, each with the value of its first function.

    Args:
        analysis: of the project.
        first: the functions to start from.
        counts: predicate of a call, its scope and the function that it runs: whether the call counts.
        surely: a call counts only if all functions that it may run are among those returned, so that a
            method of one class among several is not enough.
    """
    reached = dict(first)
    waiting: Iterable[Function] = list(reached)
    callers = callers_of(analysis) if reached else {}
    while waiting:
        new = []
        for function in waiting:
            for call, scope in callers.get(function, ()):
                if not isinstance(scope, Function) or scope in reached:
                    continue
                if surely and not reached.keys() >= set(analysis.running[call].functions):
                    continue
                if counts(call, scope, function):
                    reached[scope] = reached[function]
                    new.append(scope)
        waiting = new
    return reached


def may_run(
    call: ast.Call,
    function: Function,
    counts: Callable[[ast.Call, Scope], bool],
    analysis: Analysis,
    leading: Set[Scope] = frozenset(),
    around: Mapping[str, object] | None = None,
    depth: int = MOST_HANDED,
) -> bool:
    """Whether no constant argument of `call` rules out all calls in `function` for which `counts` is true.

    `gather(x, everywhere=False)` does not run what is below `if everywhere:`.

    Args:
        call, function: the call, and the function that it runs.
        counts: whether a call, with its scope, is one that is looked for.
        analysis: of the project.
        leading: functions that lead to such calls. A call of them counts, unless the constants that it hands
            on rule them out.
        around: the parameters of the function around the call that are constants.
        depth: maximum number of calls that hand constants on.
    """
    defined = function.definition
    if defined is None:
        return True
    constants, skipped = held_in(constants_given(call, defined, function.is_bound, around), defined)
    is_ruled_out = False
    for region in analysis.regions(function.region) if constants else ():
        for inner, at in region.calls:
            led = [target for target in analysis.running[inner].functions if target in leading]
            if not counts(inner, at) and not led:
                continue
            if inner in skipped:
                is_ruled_out = True
            elif (
                counts(inner, at)
                or not depth
                or any(
                    isinstance(target, Function)
                    and may_run(inner, target, counts, analysis, leading, constants, depth - 1)
                    for target in led
                )
            ):
                return True
            else:
                is_ruled_out = True
    return not is_ruled_out


def is_for_each_held(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` runs once per element of an attribute that begins empty: `for m in self.meters`."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    bound = scope.bindings.get(receiver.id, ()) if isinstance(receiver, ast.Name) else ()
    return any(
        binding.kind == "element" and _begins_empty(binding.value, scope, analysis)
        for binding in bound
    )


def _begins_empty(container: ast.expr | None, scope: Scope, analysis: Analysis) -> bool:
    match container:
        case ast.Call(func=ast.Attribute(value=inner, attr="values" | "items")):
            container = inner
    if not isinstance(container, ast.Attribute):
        return False
    values = [binding.value for binding in analysis.evaluator.origins(container, scope)]
    return bool(values) and all(map(_is_empty, values))


def _is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict(keys=held) | ast.List(elts=held):
            return not held
        case ast.Call(func=func, args=args):
            return _name(func) == "defaultdict" or (_name(func) in EMPTIES and not args)
    return False


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


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
            arguments = {
                argument.name: (argument.node, argument.scope)
                for argument in passed_by(analysis.running[call], analysis.evaluator)
                if argument.to is function
            }
            for name in function.all_parameters[function.is_bound :]:
                default, _ = function.declared.get(name, (None, ()))
                passed.setdefault((function, name), []).append(
                    arguments.get(name, (default, function))
                )
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
        if known and of_name and all(_keeps_one_of(binding, known) for binding in of_name)
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
