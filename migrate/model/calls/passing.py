"""Arguments of a call: for parameters of the functions that it runs, binds or launches, and for fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from migrate.catalogue.launchers import LAUNCHERS, PROCESS, SCRIPT
from migrate.model.calls.contents import Item
from migrate.model.calls.kind import Kind
from migrate.model.calls.kinds import NOTHING, TRAITS, UNKNOWN, DeviceValue, External, Values
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
        scope: the scope of the expression.
    """

    to: Function | Class
    name: str
    values: Values
    node: ast.expr | None
    scope: Scope


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
                yield Passed(function, name, frozenset([UNKNOWN]), None, ran.scope)


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
                yield Passed(
                    function, function.parameters[function.is_bound], index, None, ran.scope
                )
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
    positional, is_whole = _positional(args, ran.scope, evaluator)
    for name, (arg, at) in zip(names, positional, strict=False):
        left.discard(name)
        yield Passed(function, name, _known(arg, at, evaluator), arg, at)
    if not is_whole:
        left.clear()
    for keyword in keywords:
        if keyword.arg in function.bindings:
            values = _known(keyword.value, ran.scope, evaluator)
            yield Passed(function, str(keyword.arg), values, keyword.value, ran.scope)
        elif keyword.arg is None:
            rest = [name for name in names[len(positional) :] if name not in named]
            yield from _unpacked(function, keyword.value, rest, named, ran, evaluator)
            left.clear()
        left.discard(str(keyword.arg))
    for name in left & function.optional:
        # The function finds another value for it.
        yield Passed(function, name, frozenset([UNKNOWN]), None, ran.scope)
    gathered: Sequence[ast.expr] = args[len(names) :]
    if any(isinstance(arg, ast.Starred) for arg in args[: len(names)]):
        # Its items may be more than one parameter: what is left of them is gathered first.
        surplus = positional[len(names) :] if is_whole else []
        gathered = [arg for arg, at in surplus if at is ran.scope]
        gathered = gathered if len(gathered) == len(surplus) else []
    yield from _gathered(function, gathered, keywords, ran, evaluator)


def _positional(
    args: Sequence[ast.expr], scope: Scope, evaluator: Evaluator
) -> tuple[list[Item], bool]:
    """Return the positional arguments, and whether these are all: those of `*args`, where these are known."""
    items: list[Item] = []
    for arg in args:
        if not isinstance(arg, ast.Starred):
            items.append((arg, scope))
            continue
        evaluator.values(arg, scope)  # the call is followed again if this changes
        spread = evaluator.contents.spread(arg.value, scope)
        if spread is None:
            return items, False
        items += spread
    return items, True


def _gathered(
    function: Function,
    args: Sequence[ast.expr],
    keywords: Sequence[ast.keyword],
    ran: Running,
    evaluator: Evaluator,
) -> Iterator[Passed]:
    """Yield what a function gathers in `*args` and `**kwargs`."""
    arguments, contents = function.arguments, evaluator.contents
    if arguments.vararg is not None and args:
        display = contents.gathered(ran.call, function, ast.Tuple([*args], ast.Load()))
        yield Passed(function, arguments.vararg.arg, NOTHING, display, ran.scope)
    more = [k for k in keywords if k.arg is None or k.arg not in function.bindings]
    if arguments.kwarg is not None and more:
        keys: list[ast.expr | None] = [
            ast.Constant(k.arg) if k.arg is not None else None for k in more
        ]
        display = contents.gathered(ran.call, function, ast.Dict(keys, [k.value for k in more]))
        yield Passed(function, arguments.kwarg.arg, NOTHING, display, ran.scope)


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
                    values = evaluator.attribute(options, name)
                    yield Passed(function, name, values, None, ran.scope)
        case _:
            evaluator.values(value, ran.scope)  # the call is followed again if this changes
            for name in names:
                values = evaluator.at_key(value, name, ran.scope)
                items = [*evaluator.items_at(value, name, ran.scope)]
                for node, at in items:
                    yield Passed(function, name, values, node, at)
                if not items:
                    yield Passed(function, name, values, None, ran.scope)


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
        yield Passed(owner, name, evaluator.values(arg, ran.scope), arg, ran.scope)
    for keyword in ran.call.keywords:
        if keyword.arg in owners:
            values = evaluator.values(keyword.value, ran.scope)
            yield Passed(owners[keyword.arg], keyword.arg, values, keyword.value, ran.scope)


def _functions(node: ast.expr | None, scope: Scope, evaluator: Evaluator) -> Iterator[Function]:
    for value in evaluator.values(node, scope):
        if isinstance(value, Function):
            yield value
        elif isinstance(value, Class) and (method := evaluator.method(value, "__init__")):
            yield method
