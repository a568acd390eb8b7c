"""The call of a whole `nn.Sequential` as one call, where all that its modules do can stand in its list."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping, Sequence

import torch

from converters.graph.expression import Hole, code
from converters.graph.ir import COMPUTE, Call, Fact, Free, Ref
from converters.graph.writing.holes import fill, filled, holes, refs
from converters.graph.writing.precision.dtypes import ComputeDtype, needs
from converters.graph.writing.statements import Statement
from converters.graph.writing.training import MODE

# A module's call, the expression of the module (None: another one holds it), its statements.
Part = tuple[Call, ast.expr | None, Sequence[Statement]]

_NOTHING = (torch.nn.Identity, torch.nn.modules.dropout._DropoutNd)


def does_nothing(module: torch.nn.Module) -> bool:
    """Whether a module gives what it is given, in evaluation mode."""
    return isinstance(module, _NOTHING)


def sequence(
    module: torch.nn.Module,
    module_call: Call,
    parts: Sequence[Part],
    facts: Mapping[int, Fact],
    turned: Container[int],
) -> tuple[ast.expr, int, dict[str, ast.expr], bool] | None:
    """The argument of a Sequential, the tensor that it returns, the functions among its members, and
    whether a member is told the mode.

    Args:
        module: the Sequential.
        one: its call.
        parts: the calls of its modules in order.
        facts: shape and dtype of every tensor.
        turned: tensors that do not lie in torch's order.

    Returns:
        None where it cannot be one call: modules are missing or do something that no function of one tensor
        is, or turn what they are given.
    """
    calls = {
        call.path.rpartition(".")[2]: (access, statements) for call, access, statements in parts
    }
    if len(calls) != len(parts) or len(module_call.arguments) != 1 or len(module_call.taken) != 1:
        return None
    if list(calls) != [key for key in module._modules if key in calls]:
        return None
    argument: ast.expr | None = None
    functions: dict[str, ast.expr] = {}
    last: tuple[str, ast.expr] | None = None  # the function before this member, and what it gives
    out, layers, takes_mode = -1, 0, False
    for key, child in module._modules.items():
        access, statements = calls.get(key, (None, ()))
        if not statements:
            if child is None or not does_nothing(child):
                return None
            last = None
            continue
        chain = _chained(statements, out)
        if chain is None:
            return None
        value, start = chain
        inner = _argument(value, access)
        takes_mode = takes_mode or (inner is not None and bool(getattr(value, "keywords", ())))
        argument = Hole(Ref(start)) if argument is None and inner is None else argument
        if inner is not None:
            if argument is None:
                argument = inner
            elif not _is(inner, start):
                if last is None:
                    return None
                functions[last[0]] = filled(inner, {start: last[1]})
            last, layers = None, layers + 1
        else:
            functions[key] = value
            last = (key, value)
        out = statements[-1].outs[0]
    if argument is None or not layers:
        return None
    made_of = {key: _function(value, facts, turned) for key, value in functions.items()}
    if any(
        isinstance(hole.value, Free) for function in made_of.values() for hole in holes(function)
    ):
        return None
    if any(_tells(function) or needs(function) for function in made_of.values()):
        return None
    return argument, out, made_of, takes_mode


def _chained(statements: Sequence[Statement], before: int) -> tuple[ast.expr, int] | None:
    """The statements of a module as one expression, and the one tensor that it is of."""
    value: ast.expr | None = None
    start = at = before
    for statement in statements:
        numbers = list(refs(statement.value))
        once = len(numbers) == 1 or (value is None and len(set(numbers)) == 1)
        if (
            not once
            or not statement.single
            or len(statement.outs) != 1
            or (at >= 0 and numbers[0] != at)
        ):
            return None
        start = numbers[0] if value is None else start
        value = statement.value if value is None else filled(statement.value, {numbers[0]: value})
        at = statement.outs[0]
    return None if value is None else (value, start)


def _argument(value: ast.expr, access: ast.expr | None) -> ast.expr | None:
    """The argument of a module's call, if the value is only that call."""
    if access is None or not isinstance(value, ast.Call) or len(value.args) != 1:
        return None
    if any(keyword.arg != MODE for keyword in value.keywords):
        return None
    return value.args[0] if ast.dump(value.func) == ast.dump(access) else None


def _tells(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == MODE for node in ast.walk(value))


def _is(value: ast.expr, number: int) -> bool:
    return isinstance(value, Hole) and value.value == Ref(number)


def _function(value: ast.expr, facts: Mapping[int, Fact], turned: Container[int]) -> ast.expr:
    """A value of one tensor as a function of it: `jax.nn.relu`, or a lambda."""
    match value:
        case ast.Call(func=function, args=[Hole(value=Ref())], keywords=[]) if not any(
            holes(function)
        ):
            return function
    number = next(refs(value))
    x = ast.Name("x", ast.Load())

    def filling(hole: Hole) -> ast.expr:
        if hole.value == Ref(number):
            return x
        if isinstance(hole.value, Free) and number not in turned:
            for axis, side in enumerate(facts[number].shape):
                if side == hole.value:
                    return code("{x}.shape[{axis}]", x=x, axis=axis)
        if isinstance(hole.value, ComputeDtype) and facts[number].dtype == COMPUTE:
            return code("{x}.dtype", x=x)
        return hole

    arguments = ast.arguments([], [ast.arg("x")], None, [], [], None, [])
    return ast.Lambda(arguments, fill(value, filling))
