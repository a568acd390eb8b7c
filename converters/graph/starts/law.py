"""Law of a tensor's initial values: a constant, a computed value, or draws of a distribution."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Number:
    """A number of a law.

    Attributes:
        value: the number.
        origin: the expression that gives the number. Its leaves may be `Leaf`. None if unknown.
        literal: whether the number stands in the source: it is the same at every size.
    """

    value: float
    origin: ast.expr | None = None
    literal: bool = False


class Leaf(ast.expr):
    """A name of the original in an origin: an attribute of an object, or a constructor's argument.

    Attributes:
        holder: the object.
        name: name of the attribute or argument.
        value: its value.
        axis: the axis of the tensor whose size the attribute is; None if it is a number.
        inner: the origin of an argument in the code that made the object; None if unknown.
    """

    _fields = ()

    def __init__(
        self,
        holder: Any,
        name: str,
        value: Any,
        axis: int | None = None,
        inner: Number | None = None,
    ) -> None:
        super().__init__()
        self.holder, self.name, self.value = holder, name, value
        self.axis, self.inner = axis, inner


class Turn(ast.expr):
    """The number of a turn of a loop, in an origin.

    Attributes:
        number: the number.
    """

    _fields = ()

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@dataclass(frozen=True)
class Constant:
    """The same number in every element."""

    value: Number


@dataclass(frozen=True)
class Computed:
    """Values that depend on no random draw: the same in every new model."""


@dataclass(frozen=True)
class Sequence:
    """`torch.arange` along one axis; all other axes repeat it.

    Attributes:
        start: the first number.
        step: the difference of neighbors.
        axis: the axis of the sequence, counted from the end.
        shape: shape of the tensor.
    """

    start: Number
    step: Number
    axis: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Draw:
    """Independent draws of one distribution.

    Attributes:
        kind: "uniform" between `first` and `second`; "normal" with mean `first` and standard deviation
            `second`; "truncated": normal with mean 0 and standard deviation 1, between the two.
        first: first parameter of the distribution, see `kind`.
        second: second parameter of the distribution, see `kind`.
        scale: factor of the draws.
        shift: number added after scaling.
        named: the function of torch.nn.init that drew, and its arguments.
        rule: "fan": torch's default for a bias, uniform within 1 / sqrt(fan_in); "default": another
            default of torch's layers; "": any other code drew.
        serial: number of the draw, counted over the model.
        factor: part of `scale` by which the draws of a `trunc_normal_` were multiplied afterwards.
    """

    kind: Literal["uniform", "normal", "truncated"]
    first: Number
    second: Number
    scale: Number = Number(1.0, literal=True)
    shift: Number = Number(0.0, literal=True)
    named: tuple[str, Mapping[str, Any]] | None = None
    rule: str = ""
    serial: int = 0
    factor: Number = Number(1.0, literal=True)


@dataclass(frozen=True)
class Formula:
    """An elementwise operator on laws, at least one of them drawn."""

    operator: str
    inputs: tuple[Law | Number, ...]


@dataclass(frozen=True)
class Orthogonal:
    """`torch.nn.init.orthogonal_`."""

    gain: Number
    serial: int = 0


@dataclass(frozen=True)
class Norm:
    """The norms of slices of a tensor, as weight_norm keeps them.

    Attributes:
        of: the tensor.
    """

    of: Law


@dataclass(frozen=True)
class Unset:
    """Memory that nothing wrote to."""


@dataclass(frozen=True)
class Other:
    """Draws of an unknown law.

    Attributes:
        why: the operator or the reason.
    """

    why: str


@dataclass(frozen=True)
class Patched:
    """A law with other values in slices of the first axis.

    Attributes:
        law: law of the rest of the tensor.
        patches: start, stop and law of each slice, in the order of the writes.
    """

    law: Law
    patches: tuple[tuple[int, int, Law], ...]


Law = Constant | Computed | Sequence | Draw | Formula | Orthogonal | Norm | Unset | Other | Patched


def is_drawn(law: Law | Number) -> bool:
    """Whether the law involves random draws."""
    match law:
        case Number() | Constant() | Computed() | Sequence() | Unset():
            return False
        case Patched():
            return is_drawn(law.law) or any(is_drawn(patch) for _, _, patch in law.patches)
        case Formula():
            return any(is_drawn(part) for part in law.inputs)
    return True


def sequence(law: Law | Number) -> Sequence | None:
    """The sequence in a formula without draws."""
    match law:
        case Sequence():
            return law
        case Formula():
            return next((nested for part in law.inputs if (nested := sequence(part))), None)
    return None


def along(law: Law, axis: int, shape: tuple[int, ...]) -> Law:
    """Move the law of a sequence to another axis of a tensor of another shape."""
    match law:
        case Sequence():
            return replace(law, axis=axis, shape=shape)
        case Formula():
            inputs = tuple(
                part if isinstance(part, Number) else along(part, axis, shape)
                for part in law.inputs
            )
            return replace(law, inputs=inputs)
    return law


def serials(law: Law | Number) -> set[int]:
    """Serial numbers of the draws in a law."""
    match law:
        case Draw() | Orthogonal():
            return {law.serial}
        case Formula():
            return {serial for part in law.inputs for serial in serials(part)}
        case Norm():
            return serials(law.of)
        case Patched():
            inner = {serial for _, _, patch in law.patches for serial in serials(patch)}
            return serials(law.law) | inner
    return set()


# Elementwise operators that a port can write, by torch's names.
ELEMENTWISE = (
    *("add", "sub", "rsub", "mul", "div", "neg", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt"),
    *("pow", "reciprocal", "abs", "sin", "cos", "tanh", "sigmoid", "softplus", "erfinv", "logit"),
    *("clamp", "clamp_min", "clamp_max", "square", "log2", "exp2", "sign"),
)
_EDGE = 1e-5
# erfinv of uniform draws, times this number, is normal.
_SHRUNK = Number(1 / math.sqrt(2), literal=True)


def applied(operator: str, inputs: tuple[Law | Number, ...]) -> Law:
    """The law of an elementwise operator's output."""
    first, *others = inputs
    if isinstance(first, Patched) or any(isinstance(law, Patched) for law in others):
        return Other(operator)
    if any(isinstance(law, Unset | Other) for law in inputs):
        return next(law for law in inputs if isinstance(law, Unset | Other))
    if not any(is_drawn(law) for law in inputs):
        parts = [_number(law) for law in inputs]
        if (same := _constant(operator, parts)) is not None:
            return Constant(same)
        known = (
            operator in ELEMENTWISE
            and len({id(part) for part in parts if not isinstance(part, Number)}) == 1
        )
        plain = known and all(isinstance(part, Number | Sequence | Formula) for part in parts)
        return Formula(operator, tuple(parts)) if plain else Computed()
    numbers = [_number(law) for law in others]
    if operator in ("mul", "add") and isinstance(_number(first), Number) and len(inputs) == 2:
        return applied(operator, (inputs[1], inputs[0]))
    if isinstance(first, Draw) and len(numbers) == 1 and isinstance(numbers[0], Number):
        scaled = _affine(operator, first, numbers[0])
        if scaled is not None:
            return scaled
    if isinstance(first, Draw) and operator == "neg":
        return _affine("mul", first, Number(-1.0, literal=True)) or Other(operator)
    if isinstance(first, Draw) and operator == "erfinv" and first.kind == "uniform":
        edges = [_erfinv(bound.value) for bound in (first.first, first.second)]
        plain = first.scale.value == 1 and first.shift.value == 0
        if plain and edges[0] < edges[1]:
            low, high = (Number(math.sqrt(2) * edge_value) for edge_value in edges)
            return Draw("truncated", low, high, _SHRUNK, serial=first.serial)
    if operator == "clamp" and isinstance(first, Draw) and first.kind == "truncated":
        # The end of torch's truncated normal: it clips what rounding left outside.
        ends = [_bound(first, edge.value) for edge in (first.first, first.second)]
        limits = [
            limit_number.value if isinstance(limit_number, Number) else math.nan
            for limit_number in numbers
        ]
        near = [
            abs(limit - edge) <= _EDGE * max(1.0, abs(edge)) or math.isinf(edge)
            for limit, edge in zip(limits, ends, strict=False)
        ]
        if len(near) == 2 and all(near):
            low, high = (limit for limit in numbers if isinstance(limit, Number))
            named = {"mean": first.shift, "std": first.scale, "a": low, "b": high}
            return first if first.named else replace(first, named=("trunc_normal_", named))
    if operator not in ELEMENTWISE or any(isinstance(law, Computed) for law in inputs):
        return Other(operator)
    return Formula(operator, tuple(_number(law) for law in inputs))


def _number(law: Law | Number) -> Law | Number:
    return law.value if isinstance(law, Constant) else law


def _constant(operator: str, parts: Iterable[Law | Number]) -> Number | None:
    """The result of an operator of two numbers; None if it is not one of the four of arithmetic."""
    match operator, [part for part in parts if isinstance(part, Number)]:
        case "mul", [left, right]:
            return product(left, right)
        case "div", [left, right] if right.value:
            return quotient(left, right)
        case "add", [left, right]:
            return total(left, right)
        case "sub", [left, right]:
            return total(left, product(right, Number(-1.0, literal=True)))
        case "neg", [number]:
            return product(number, Number(-1.0, literal=True))
    return None


def _bound(draw: Draw, edge: float) -> float:
    return edge * draw.scale.value + draw.shift.value


def _erfinv(value: float) -> float:
    import torch

    return float(torch.erfinv(torch.tensor(value, dtype=torch.float64)))


def _affine(operator: str, draw: Draw, by: Number) -> Draw | None:
    """The law of a draw multiplied by a number, or with a number added."""
    match operator:
        case "mul" if draw.kind == "truncated" and draw.scale == _SHRUNK:
            scale, shift = _without_root(by), product(draw.shift, by)
        case "mul":
            scale, shift = product(draw.scale, by), product(draw.shift, by)
            draw = replace(draw, factor=product(draw.factor, by))
        case "div":
            if not by.value:
                return None
            scale, shift = quotient(draw.scale, by), quotient(draw.shift, by)
            draw = replace(draw, factor=quotient(draw.factor, by))
        case "add":
            scale, shift = draw.scale, total(draw.shift, by)
        case "sub":
            scale, shift = draw.scale, total(draw.shift, product(by, Number(-1.0, literal=True)))
        case _:
            return None
    return replace(draw, scale=scale, shift=shift)


def _without_root(by: Number) -> Number:
    """A number divided by the root of 2: `std` of `std * math.sqrt(2.0)`."""
    value, origin = by.value / math.sqrt(2), None
    if isinstance(by.origin, ast.BinOp) and isinstance(by.origin.op, ast.Mult):
        for side, other in (
            (by.origin.left, by.origin.right),
            (by.origin.right, by.origin.left),
        ):
            if ast.unparse(side).replace(" ", "") in ("math.sqrt(2)", "math.sqrt(2.0)"):
                origin = other
    return Number(value, origin, by.literal)


def product(left: Number, right: Number) -> Number:
    """left · right."""
    for factor, other in ((left, right), (right, left)):
        if factor.value == 1 and factor.literal:
            return other
        if factor.value == 0 and factor.literal:
            return factor
    return _joined(left.value * right.value, left, ast.Mult(), right)


def quotient(left: Number, right: Number) -> Number:
    """left / right."""
    if left.value == 0 and left.literal:
        return left
    if right.value == 1 and right.literal:
        return left
    return _joined(left.value / right.value, left, ast.Div(), right)


def total(left: Number, right: Number) -> Number:
    """left + right."""
    for term, other in ((left, right), (right, left)):
        if term.value == 0 and term.literal:
            return other
    return _joined(left.value + right.value, left, ast.Add(), right)


def _joined(value: float, left: Number, operator: ast.operator, right: Number) -> Number:
    literal = left.literal and right.literal
    if left.origin is None or right.origin is None:
        sides = [
            ast.Constant(side.value) if side.origin is None and side.literal else side.origin
            for side in (left, right)
        ]
        if literal or sides[0] is None or sides[1] is None:
            return Number(value, None, literal)
        return Number(value, ast.BinOp(sides[0], operator, sides[1]))
    return Number(value, ast.BinOp(left.origin, operator, right.origin), literal)
