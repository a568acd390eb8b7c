"""Which branches of a function a call rules out by its constants: `export(model, path, version=0)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def ruled_out(call: ast.Call, function: Definition, bound: bool) -> frozenset[ast.AST]:
    """Return the nodes of `function` that do not run where `call` calls it.

    They stand in branches of tests of parameters that the call, or a default, gives a constant, and that
    nothing assigns to.

    Args:
        call: the call.
        function: what it calls.
        bound: whether the first parameter is not the call's to give: `self`.
    """
    constants = _constants(call, function, bound)
    for node in ast.walk(function) if constants else ():
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            constants.pop(node.id, None)
    found: set[ast.AST] = set()
    for node in ast.walk(function) if constants else ():
        if isinstance(node, ast.If):
            outcome = _outcome(node.test, constants)
            if outcome is not None:
                skipped = node.orelse if outcome else node.body
                found.update(below for one in skipped for below in ast.walk(one))
    return frozenset(found)


def _constants(call: ast.Call, function: Definition, bound: bool) -> dict[str, object]:
    """Return what the parameters of `function` are, where that is plain to see; by name."""
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return {}
    if any(keyword.arg is None for keyword in call.keywords):
        return {}
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    given: dict[str, ast.expr] = dict(_defaults(function))
    given |= dict(zip(names[int(bound) :], call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    found: dict[str, object] = {}
    for name, value in given.items():
        try:
            found[name] = ast.literal_eval(value)
        except ValueError:
            continue
    return found


def _defaults(function: Definition) -> Iterator[tuple[str, ast.expr]]:
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    defaults = function.args.defaults
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    for arg, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None:
            yield arg.arg, default


def _outcome(test: ast.expr, constants: Mapping[str, object]) -> bool | None:
    """Return how `test` comes out; None where the constants do not decide it."""
    match test:
        case ast.Name(id=name) if name in constants:
            return bool(constants[name])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _outcome(operand, constants)
            return None if inner is None else not inner
        case ast.BoolOp(op=op, values=values):
            outcomes = [_outcome(value, constants) for value in values]
            ends = isinstance(op, ast.Or)  # what decides it alone
            if ends in outcomes:
                return ends
            return None if None in outcomes else not ends
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[right]) if (
            name in constants
        ):
            try:
                other = ast.literal_eval(right)
                return _compared(constants[name], op, other)
            except (ValueError, TypeError):
                return None
    return None


def _compared(value: object, op: ast.cmpop, other: object) -> bool | None:
    match op:
        case ast.Eq() | ast.Is():
            return value == other
        case ast.NotEq() | ast.IsNot():
            return value != other
        case ast.In() if isinstance(other, tuple | list | set):
            return value in other
        case ast.NotIn() if isinstance(other, tuple | list | set):
            return value not in other
    return None
