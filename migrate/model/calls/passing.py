"""Arguments of a call: for parameters of the functions that it runs, binds or launches, and for fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from migrate.catalogue.launchers import LAUNCHERS, PROCESS, SCRIPT
from migrate.model.calls.kind import Kind
from migrate.model.calls.kinds import TRAITS, UNKNOWN, DeviceValue, External, Values
from migrate.model.calls.scopes import Class, Function, Scope
from migrate.model.calls.training import Running
from migrate.model.calls.values import Evaluator

PARTIAL = frozenset({"functools.partial", "functools.partialmethod"})
# Functions that run their first argument once per replica, with the replica index before the `args`.
LAUNCH = LAUNCHERS - {SCRIPT}
RUN = PROCESS | {"threading.Thread"}


class Passed(NamedTuple):
    """Argument of a call.

    Args:
        to, name: the function or data class, and its parameter or field.
        values: the possible values of the argument.
        node: the expression, or None if no single expression is the argument.
    """

    to: Function | Class
    name: str
    values: Values
    node: ast.expr | None = None


def passed_by(ran: Running, evaluator: Evaluator) -> Iterator[Passed]:
    """Yield the arguments that a call passes to functions and data classes."""
    called = evaluator.values(ran.call.func, ran.scope)
    for function in ran.functions:
        skip = ran.bound.get(function, 0)
        yield from _to_function(function, ran.call.args, ran.call.keywords, ran, evaluator, skip)
    for value in called:
        if isinstance(value, Class) and evaluator.method(value, "__init__") is None:
            yield from _to_fields(value, ran, evaluator)
        elif isinstance(value, External):
            yield from _of_external(value.name, ran, evaluator)
    if not ran.functions:
        yield from _handed_on(called, ran, evaluator)


def _handed_on(called: Values, ran: Running, evaluator: Evaluator) -> Iterator[Passed]:
    """Yield unknown arguments for a function that is passed to an unknown call."""
    names = {value.name for value in called if isinstance(value, External)}
    if names & (PARTIAL | LAUNCH | RUN):
        return
    for arg in (*ran.call.args, *(keyword.value for keyword in ran.call.keywords)):
        for function in _functions(arg, ran.scope, evaluator):
            for name in function.parameters[function.is_bound :]:
                yield Passed(function, name, frozenset([UNKNOWN]))


def _known(node: ast.expr, scope: Scope, evaluator: Evaluator) -> Values:
    """Return the possible values of `node`, with the marker of an unknown value if nothing is known."""
    values = evaluator.values(node, scope)
    # A number computed from an index is no more a device than any other number.
    is_known = bool(values - TRAITS) or isinstance(node, ast.Constant)
    return values if is_known else values | {UNKNOWN}


def _of_external(name: str, ran: Running, evaluator: Evaluator) -> Iterator[Passed]:
    call = ran.call
    if name in PARTIAL and call.args:
        for function in _functions(call.args[0], ran.scope, evaluator):
            yield from _to_function(function, call.args[1:], call.keywords, ran, evaluator)
    elif name in LAUNCH | RUN:
        of_process = name in RUN
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        target = named.get("target" if of_process else "fn")
        if target is None and call.args and not of_process:
            target = call.args[0]
        args = named.get("args") or (call.args[1] if len(call.args) > 1 else None)
        for function in _functions(target, ran.scope, evaluator):
            if not of_process and len(function.parameters) > function.is_bound:
                index = frozenset([DeviceValue(Kind.INDEX)])
                yield Passed(function, function.parameters[function.is_bound], index)
            if isinstance(args, ast.Tuple | ast.List):
                yield from _to_function(function, args.elts, [], ran, evaluator, not of_process)


def _to_function(
    function: Function,
    args: Sequence[ast.expr],
    keywords: Sequence[ast.keyword],
    ran: Running,
    evaluator: Evaluator,
    skip: int = 0,
) -> Iterator[Passed]:
    """Yield the arguments of a function, whose first `skip` parameters get other values."""
    names = function.parameters[function.is_bound + skip :]
    left = set(names)
    named = {keyword.arg for keyword in keywords}
    for name, arg in zip(names, args, strict=False):
        if isinstance(arg, ast.Starred):
            left.clear()
            break
        left.discard(name)
        yield Passed(function, name, _known(arg, ran.scope, evaluator), arg)
    for keyword in keywords:
        if keyword.arg in function.bindings:
            values = _known(keyword.value, ran.scope, evaluator)
            yield Passed(function, str(keyword.arg), values, keyword.value)
        elif keyword.arg is None:
            rest = [name for name in names[len(args) :] if name not in named]
            yield from _unpacked(function, keyword.value, rest, named, ran, evaluator)
            left.clear()
        left.discard(str(keyword.arg))
    for name in left & function.optional:
        # The function finds another value for it.
        yield Passed(function, name, frozenset([UNKNOWN]))


def _unpacked(
    function: Function,
    value: ast.expr,
    names: Sequence[str],
    named: Set[str | None],
    ran: Running,
    evaluator: Evaluator,
) -> Iterator[Passed]:
    """Yield the arguments of `train(**vars(args))` and `train(**options)`, except those in `named`."""
    more = (parameter.arg for parameter in function.arguments.kwonlyargs)
    names = [*names, *(name for name in more if name not in named)]
    match value:
        case ast.Call(func=ast.Name(id="vars"), args=[of]):
            for name in names:
                for options in evaluator.values(of, ran.scope):
                    yield Passed(function, name, evaluator.attribute(options, name))
        case ast.Name() | ast.Attribute():
            for name in names:
                yield Passed(function, name, evaluator.at_key(value, name, ran.scope))


def _to_fields(class_: Class, ran: Running, evaluator: Evaluator) -> Iterator[Passed]:
    """Yield the values of a data class's fields."""
    owners = {
        name: ancestor
        for ancestor in reversed(list(evaluator.ancestors(class_)))
        for name in ancestor.fields
    }
    for (name, owner), arg in zip(owners.items(), ran.call.args, strict=False):
        if isinstance(arg, ast.Starred):
            break
        yield Passed(owner, name, evaluator.values(arg, ran.scope), arg)
    for keyword in ran.call.keywords:
        if keyword.arg in owners:
            values = evaluator.values(keyword.value, ran.scope)
            yield Passed(owners[keyword.arg], keyword.arg, values, keyword.value)


def _functions(node: ast.expr | None, scope: Scope, evaluator: Evaluator) -> Iterator[Function]:
    for value in evaluator.values(node, scope):
        if isinstance(value, Function):
            yield value
        elif isinstance(value, Class) and (method := evaluator.method(value, "__init__")):
            yield method
