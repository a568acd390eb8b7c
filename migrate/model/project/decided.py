"""Code that constants rule out: in a function for the arguments of a call, and in a whole file."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.project.project import SourceModule

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def ruled_out(call: ast.Call, function: Definition, bound: bool) -> frozenset[ast.AST]:
    """Return the nodes of `function` that do not run if `call` calls it.

    They are in branches of tests of parameters that get a constant from the call or a default, and are
    assigned at most where that does not run; or below such a test that leaves: `if not distributed: return`.

    Args:
        call: the call.
        function: the callee.
        bound: whether the call does not pass the first parameter: `self`.
    """
    return ruled_out_by(constants_given(call, function, bound), function)


def ruled_out_by(constants: Mapping[str, object], function: Definition) -> frozenset[ast.AST]:
    """Return the nodes of `function` that do not run if its parameters have the values `constants`."""
    return held_in(constants, function)[1]


def held_in(
    constants: Mapping[str, object], function: Definition
) -> tuple[Mapping[str, object], frozenset[ast.AST]]:
    """Return which of `constants` the parameters hold throughout `function`, and what does not run then."""
    left = dict(constants)
    stored = [
        node
        for node in (walk(function) if left else ())
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node.id in left
    ]
    while left:
        idle = _idle(walk(function), left)
        lost = {node.id for node in stored if node not in idle}.intersection(left)
        if not lost:
            return left, idle
        left = {name: value for name, value in left.items() if name not in lost}
    return {}, frozenset()


def constants_given(
    call: ast.Call, function: Definition, bound: bool, around: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the plain constant values of the parameters of `function`, by name.

    Args:
        call, function, bound: see `ruled_out`.
        around: the values of the parameters of the function around the call, as far as they are known.
    """
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return {}
    if any(keyword.arg is None for keyword in call.keywords):
        return {}
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    arguments: dict[str, ast.expr] = dict(_defaults(function))
    arguments |= dict(zip(names[int(bound) :], call.args, strict=False))
    arguments |= {
        keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None
    }
    constants: dict[str, object] = {}
    for name, value in arguments.items():
        if isinstance(value, ast.Name) and around is not None and value.id in around:
            constants[name] = around[value.id]
            continue
        try:
            constants[name] = ast.literal_eval(value)
        except ValueError:
            continue
    return constants


def _defaults(function: Definition) -> Iterator[tuple[str, ast.expr]]:
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    defaults = function.args.defaults
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    for arg, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None:
            yield arg.arg, default


def _outcome(test: ast.expr, constants: Mapping[str, object]) -> bool | None:
    """Return the result of `test`; None if the constants do not decide it."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id=name) if name in constants:
            return bool(constants[name])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _outcome(operand, constants)
            return None if inner is None else not inner
        case ast.BoolOp(op=op, values=values):
            outcomes = [_outcome(value, constants) for value in values]
            ends = isinstance(op, ast.Or)  # operand that decides it alone
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
        case ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE() if isinstance(
            value, int | float
        ) and isinstance(other, int | float):
            is_equal, is_larger = value == other, value > other
            if isinstance(op, ast.GtE | ast.LtE) and is_equal:
                return True
            return is_larger if isinstance(op, ast.Gt | ast.GtE) else not is_larger and not is_equal
    return None


@lru_cache(maxsize=2000)
def idle_nodes(module: SourceModule) -> frozenset[ast.AST]:
    """Return the nodes of a file that never run: after an unconditional exit, or in a dead branch.

    A test counts if it is a constant, or a variable of the file that is set once, to a constant.
    """
    return _idle(module.nodes, _variables(module))


def _idle(nodes: Iterable[ast.AST], constants: Mapping[str, object]) -> frozenset[ast.AST]:
    """Return the nodes that never run with these constants, at and below `nodes`."""
    idle: set[ast.AST] = set()
    for node in nodes:
        dead: list[ast.stmt] = []
        if isinstance(node, ast.If):
            outcome = _outcome(node.test, constants)
            if outcome is not None:
                dead += node.orelse if outcome else node.body
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                ends = (
                    number
                    for number, statement in enumerate(block)
                    if _leaves(statement, constants)
                )
                dead += block[next(ends, len(block)) + 1 :]
        idle.update(below for statement in dead for below in walk(statement))
    return frozenset(idle)


def _variables(module: SourceModule) -> dict[str, object]:
    """Return the variables of a file that are bound once, to a constant, by name."""
    bound: Counter[str] = Counter()
    for node in module.nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound[name] += 1
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                bound.update(names)
            case ast.Call(func=ast.Name(id="exec" | "globals")):
                return {}
    return {
        name: value
        for line in module.tree.body
        for name, value in _assigned(line)
        if bound[name] == 1
    }


def _assigned(line: ast.stmt) -> Iterator[tuple[str, object]]:
    match line:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value))
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value))
        ):
            yield name, value


def _leaves(statement: ast.AST, constants: Mapping[str, object]) -> bool:
    """Whether nothing below `statement` in its block runs."""
    if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    if not isinstance(statement, ast.If):
        return False
    outcome = _outcome(statement.test, constants)
    ways = [
        any(_leaves(child, constants) for child in b) for b in (statement.body, statement.orelse)
    ]
    return all(ways) if outcome is None else ways[not outcome]
