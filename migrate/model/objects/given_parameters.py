"""Parameters of functions that get parameters or gradients of a model: `update(group["params"])`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from migrate.model.calls.contents import Item
from migrate.model.calls.scopes import Function, ModuleScope, ValueBinding
from migrate.model.objects.parts import passed_nodes
from migrate.syntax.walk_ast import children

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

# Attributes and methods that give parameters of a model, or their gradients.
OF_PARAMETERS = frozenset({"grad", "named_parameters", "param_groups", "parameters"})
KEY = "params"  # of a group of an optimizer
# Maximum number of expressions followed from an argument to the parameters.
MOST = 300
OPTIMIZERS = "torch.optim."


def given_parameters(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[Function, str]]:
    """Yield the parameters of the functions of a file for which a call passes parameters of a model."""
    passed = passed_nodes(analysis)
    for function in top.functions:
        for name in function.all_parameters:
            if _hold(passed.get((function, name), ()), analysis):
                yield function, name


def _hold(items: Iterable[Item], analysis: Analysis) -> bool:
    """Whether one of `items` is made of parameters or gradients."""
    waiting = list(items)
    seen: set[tuple[int, int]] = set()
    while waiting and len(seen) < MOST:
        node, scope = waiting.pop()
        if (id(node), id(scope)) in seen:
            continue
        seen.add((id(node), id(scope)))
        match node:
            case ast.Name(id=name):
                bindings = analysis.evaluator.bindings_of(name, scope)
            case ast.Attribute(attr=name) if name in OF_PARAMETERS:
                return True
            case ast.Subscript(slice=ast.Constant(value=key)) if key == KEY:
                return True
            case ast.Attribute(value=value, attr=name):
                bindings = analysis.evaluator.members_of(value, name, scope)
            case ast.Lambda() | ast.Compare():
                continue
            case _:
                waiting += [(child, scope) for child in _parts(node)]
                continue
        for binding in bindings:
            if _is_of_optimizer(binding, analysis):
                return True
            waiting += _followed(binding, analysis)
    return False


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in `node`; the receiver of a call, not its function."""
    for child in children(node):
        if isinstance(node, ast.Call) and child is node.func:
            if isinstance(child, ast.Attribute):
                yield child if child.attr in OF_PARAMETERS else child.value
        elif isinstance(child, ast.expr):
            yield child
        else:
            yield from _parts(child)


def _followed(binding: ValueBinding, analysis: Analysis) -> Iterable[Item]:
    if binding.kind == "param" and isinstance(binding.scope, Function):
        return passed_nodes(analysis).get((binding.scope, binding.name), ())
    return [(binding.value, binding.scope)] if binding.value is not None else []


def _is_of_optimizer(binding: ValueBinding, analysis: Analysis) -> bool:
    """Whether `binding` is the first parameter of the constructor of an optimizer."""
    function = binding.scope
    if binding.kind != "param" or not isinstance(function, Function) or function.owner is None:
        return False
    bases = analysis.evaluator.external_bases(function.owner)
    is_first = function.name == "__init__" and function.parameters[1:2] == [binding.name]
    return is_first and any(base.startswith(OPTIMIZERS) for base in bases)
