"""Bounds of free sizes: the branches on sizes that the recording took.

`torch.export` leaves a side of an input free and records one branch of `if length > window:`. The condition
under which it took that branch is a guard. A port holds where the guards hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sympy
import torch

_TORCH = f"{Path(torch.__path__[0])}/"
# torch.export treats sides of 0 and 1 as constants, so each free side is at least 2.
_LEAST = 2


@dataclass(frozen=True)
class Side:
    """An axis of an input."""

    name: str
    axis: int

    @property
    def code(self) -> str:
        """The size in the source: `x.shape[1]`."""
        return f"{self.name}.shape[{self.axis}]"

    @property
    def shown(self) -> str:
        """The axis in words."""
        return f"axis {self.axis} of {self.name}"


@dataclass(frozen=True)
class Bound:
    """A condition on free sizes under which the recording holds.

    Attributes:
        condition: in Python, in terms of the inputs' shapes: `x.shape[1] <= 32`.
        text: for a reader: "axis 1 of x: up to 32".
        sides: the axes in it.
        numbers: the numbers in it.
        of_model: whether a line of the model compares; else an operator of torch needs this least size.
    """

    condition: str
    text: str
    sides: tuple[Side, ...]
    numbers: tuple[int, ...]
    of_model: bool = True


def bounds(program: torch.export.ExportedProgram, names: Sequence[str]) -> tuple[Bound, ...]:
    """The bounds of a recording's free sizes.

    Args:
        program: the original result of `torch.export`; later versions have lost some bounds.
        names: the inputs, in the order of the graph.
    """
    sides: dict[sympy.Symbol, Side] = {}
    environment = None
    for side, size in _sizes(program, names):
        environment = size.shape_env
        if isinstance(size.expr, sympy.Symbol):
            sides.setdefault(size.expr, side)
    if environment is None:
        return ()
    compared = {
        symbol
        for guard in environment.guards
        if len(guard.expr.free_symbols) == 1 and _is_of_model(guard)
        for symbol in guard.expr.free_symbols
    }
    found_bounds = dict.fromkeys(_orders(program.range_constraints, sides, compared))
    for guard in environment.guards:
        found_bounds |= dict.fromkeys(_of_guard(guard, environment, sides))
    return _with_equalities(tuple(found_bounds))


def free_sides(program: torch.export.ExportedProgram, names: Sequence[str]) -> dict[Side, Any]:
    """Axes of inputs whose size is free, with its symbol."""
    return {
        side: size.expr
        for side, size in _sizes(program, names)
        if isinstance(size.expr, sympy.Symbol)
    }


def tied(
    program: torch.export.ExportedProgram, names: Sequence[str], free: Mapping[Side, Any]
) -> tuple[Bound, ...]:
    """The bounds of axes whose size has become a sum or product of others.

    A recording of a recording decides torch's own questions, as whether a part of one column is
    contiguous, by a relation of sizes. It then holds for this relation alone.

    Args:
        program: the later recording.
        names: the inputs, in the order of the graph.
        free: the axes that were free in the first recording.
    """
    now = dict(_sizes(program, names))
    sides = {
        size.expr: side
        for side, size in reversed(now.items())
        if isinstance(size.expr, sympy.Symbol)
    }
    result = []
    for side in free:
        expression = now[side].expr if side in now else sympy.Integer(0)
        symbols = expression.free_symbols
        if not expression.args or not symbols <= sides.keys():
            continue
        others = [sides[symbol] for symbol in sorted(symbols, key=str)]
        size = _python(expression, {symbol: sides[symbol].code for symbol in symbols})
        if size is not None:
            numbers = tuple(int(number) for number in expression.atoms(sympy.Integer))
            condition = f"{side.code} == {size}"
            result.append(Bound(condition, f"only where {condition}", (side, *others), numbers))
    return tuple(result)


def _sizes(
    program: torch.export.ExportedProgram, names: Sequence[str]
) -> Iterator[tuple[Side, Any]]:
    """Axes of inputs that are not numbers, with their sizes."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for name, node in zip(names, program.graph_signature.user_inputs, strict=True):
        value = nodes[node].meta.get("val") if node in nodes else None
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                yield Side(name, axis), size.node


def _orders(
    constraints: Mapping[Any, Any], sides: Mapping[sympy.Symbol, Side], compared: set[sympy.Symbol]
) -> Iterator[Bound]:
    """The least and the largest size of each free axis, as far as the recording has them."""
    for symbol, span in constraints.items():
        side = sides.get(symbol)
        if side is None:
            continue
        named = side.shown
        ours = symbol in compared
        if span.lower.is_Integer and int(span.lower) > _LEAST:
            least = int(span.lower)
            yield Bound(
                f"{side.code} >= {least}", f"{named}: from {least}", (side,), (least,), ours
            )
        if span.upper.is_Integer and int(span.upper) < 2**31:
            most = int(span.upper)
            yield Bound(f"{side.code} <= {most}", f"{named}: up to {most}", (side,), (most,), ours)


def _of_guard(guard: Any, environment: Any, sides: Mapping[sympy.Symbol, Side]) -> Iterator[Bound]:
    """The condition of a guard, other than least and largest sizes.

    Torch's own comparisons (does a product fit, is a tensor contiguous) are not the model's
    branches: every size gives the same values there, except for the end of a slice, which `_orders`
    handles.
    """
    expression = _without_itself(guard.expr.xreplace(dict(environment.replacements)))
    expression = _without_minus(expression)
    symbols = expression.free_symbols
    if not symbols or not symbols <= sides.keys():
        return
    order = isinstance(expression, sympy.core.relational._Inequality)
    if order and len(symbols) == 1 and expression.atoms(sympy.Function) == set():
        return  # given by `_orders`
    if not _is_of_model(guard):
        return
    named = {symbol: sides[symbol] for symbol in sorted(symbols, key=str)}
    condition = _python(expression, {symbol: side.code for symbol, side in named.items()})
    if condition is not None:
        numbers = tuple(int(number) for number in expression.atoms(sympy.Integer))
        yield Bound(condition, f"only where {condition}", tuple(named.values()), numbers)


def _without_itself(expression: Any) -> Any:
    """`a >= b` for `a >= max(a, b)`, and `a < b` for `a < max(a, b)`."""
    if isinstance(expression, sympy.Ge | sympy.Lt):
        left, right = expression.args
        if type(right).__name__ == "Max" and left in right.args and len(right.args) == 2:
            [other] = (size for size in right.args if size != left)
            return type(expression)(left, other)
    return expression


def _without_minus(expression: Any) -> Any:
    """`a <= b` for `a + -1 * b <= 0`."""
    if isinstance(expression, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt):
        terms = sympy.Add.make_args(expression.lhs - expression.rhs)
        minus = [term for term in terms if term.could_extract_minus_sign()]
        plus = [term for term in terms if term not in minus]
        if minus and plus:
            return type(expression)(sympy.Add(*plus), -sympy.Add(*minus))
    return expression


def _with_equalities(bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """The bounds with `a == b` for `a <= b` and `b <= a`."""

    def sides(condition: str) -> tuple[str, ...]:
        left, at_least, right = condition.partition(" >= ")
        return (right, left) if at_least else tuple(condition.split(" <= "))

    orders = {sides(bound.condition): bound for bound in bounds if bound.of_model}
    result = []
    for bound in bounds:
        order = sides(bound.condition)
        if len(order) == 2 and order in orders and order[::-1] in orders:
            if orders[order[::-1]] in result:
                continue
            same = {" <= ": " == ", " >= ": " == "}
            for relation, equal in same.items():
                condition = bound.condition.replace(relation, equal)
                text = bound.text.replace(relation, equal)
                bound = replace(bound, condition=condition, text=text)
            orders[order] = bound
        result.append(bound)
    return tuple(result)


def _is_of_model(guard: Any) -> bool:
    """Whether the comparing line is outside torch."""
    place = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    file = getattr(place, "filename", None)
    return file is not None and not file.startswith(_TORCH)


_RELATIONS: Mapping[type, str] = {
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.Le: "<=",
    sympy.Lt: "<",
    sympy.Ge: ">=",
    sympy.Gt: ">",
}
_FUNCTIONS = {"Mod": "%", "PythonMod": "%", "FloorDiv": "//"}
_OF_ALL = {"Max": "max", "Min": "min"}


def _python(expression: Any, names: Mapping[sympy.Symbol, str]) -> str | None:
    """An expression of sizes in Python; None if it uses unknown functions."""
    if isinstance(expression, sympy.Symbol):
        return names[expression]
    if expression.is_Integer:
        return str(int(expression))
    parts = [_python(argument, names) for argument in expression.args]
    if not parts or None in parts:
        return None
    within = [
        f"({part})" if argument.args else str(part)
        for argument, part in zip(expression.args, parts, strict=True)
    ]
    for kind, symbol in _RELATIONS.items():
        if isinstance(expression, kind):
            return f"{parts[0]} {symbol} {parts[1]}"
    if isinstance(expression, sympy.Add):
        return " + ".join(within)
    if isinstance(expression, sympy.Mul):
        return " * ".join(within)
    name = type(expression).__name__
    if name in _OF_ALL:
        return f"{_OF_ALL[name]}({', '.join(map(str, parts))})"
    symbol = _FUNCTIONS.get(name, "")
    return f"{within[0]} {symbol} {within[1]}" if symbol else None
