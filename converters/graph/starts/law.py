"""What a tensor holds when its model is new: a constant, what was computed, or draws of a distribution."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Number:
    """A number of a law.

    Attributes:
        value: the number.
        origin: what gives it: an expression whose leaves may be `Leaf`; None: nothing that is known.
        literal: whether the source has the number itself: it holds at every size.
    """

    value: float
    origin: ast.expr | None = None
    literal: bool = False


class Leaf(ast.expr):
    """A name of the original in an origin: an attribute of an object, or an argument of a constructor.

    Attributes:
        holder: the object.
        name: of the attribute or argument.
        value: its value.
        axis: the side of the tensor that the attribute is; None: it is a number.
        inner: the origin of an argument in the code that made the object; None: nothing says it.
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


@dataclass(frozen=True)
class Constant:
    """One number everywhere."""

    value: Number


@dataclass(frozen=True)
class Computed:
    """Numbers that follow from no draw: the same in every new model."""


@dataclass(frozen=True)
class Sequence:
    """`torch.arange` along one axis, the same along the others.

    Attributes:
        start: the first number.
        step: from each to the next.
        axis: along which, counted from the end.
        shape: of the tensor.
    """

    start: Number
    step: Number
    axis: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Draw:
    """Independent draws of one distribution.

    Attributes:
        kind: "uniform" between `first` and `second`; "normal" of mean `first` and standard deviation
            `second`; "truncated": a normal one of mean 0 and standard deviation 1, between the two.
        first: see there.
        second: see there.
        scale: by what the draws are multiplied.
        shift: what is added then.
        named: the function of torch.nn.init that drew, and its arguments.
        rule: "fan": torch's default of a bias, uniform within 1 / sqrt(fan_in); "default": another one of
            torch's layers; "": drawn by something else.
        serial: which draw of the model it is.
    """

    kind: Literal["uniform", "normal", "truncated"]
    first: Number
    second: Number
    scale: Number = Number(1.0, literal=True)
    shift: Number = Number(0.0, literal=True)
    named: tuple[str, Mapping[str, Any]] | None = None
    rule: str = ""
    serial: int = 0


@dataclass(frozen=True)
class Formula:
    """An operator, element by element, on laws of which some are drawn."""

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
    """Draws of which no law is known.

    Attributes:
        why: the operator or the reason.
    """

    why: str


@dataclass(frozen=True)
class Patched:
    """A law with other values in slices of the first axis.

    Attributes:
        law: of the whole.
        patches: start, stop and law of each slice, in the order in which they were written.
    """

    law: Law
    patches: tuple[tuple[int, int, Law], ...]


Law = Constant | Computed | Sequence | Draw | Formula | Orthogonal | Norm | Unset | Other | Patched


def is_drawn(law: Law | Number) -> bool:
    """Whether chance has a part in it."""
    match law:
        case Number() | Constant() | Computed() | Sequence() | Unset():
            return False
        case Patched():
            return is_drawn(law.law) or any(is_drawn(one) for _, _, one in law.patches)
        case Formula():
            return any(is_drawn(one) for one in law.inputs)
    return True


def sequence(law: Law | Number) -> Sequence | None:
    """The sequence that a formula without draws is about."""
    match law:
        case Sequence():
            return law
        case Formula():
            return next((one for part in law.inputs if (one := sequence(part))), None)
    return None


def along(law: Law, axis: int, shape: tuple[int, ...]) -> Law:
    """A law of a sequence, lying along another axis of a tensor of another shape."""
    match law:
        case Sequence():
            return replace(law, axis=axis, shape=shape)
        case Formula():
            inputs = tuple(
                one if isinstance(one, Number) else along(one, axis, shape) for one in law.inputs
            )
            return replace(law, inputs=inputs)
    return law


def serials(law: Law | Number) -> set[int]:
    """The draws that a law is made of."""
    match law:
        case Draw() | Orthogonal():
            return {law.serial}
        case Formula():
            return {serial for one in law.inputs for serial in serials(one)}
        case Norm():
            return serials(law.of)
        case Patched():
            inner = {serial for _, _, one in law.patches for serial in serials(one)}
            return serials(law.law) | inner
    return set()


# Operators that a port can write for each element, by what torch calls them.
ELEMENTWISE = (
    *("add", "sub", "rsub", "mul", "div", "neg", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt"),
    *("pow", "reciprocal", "abs", "sin", "cos", "tanh", "sigmoid", "softplus", "erfinv", "logit"),
    *("clamp", "clamp_min", "clamp_max", "square", "log2", "exp2", "sign"),
)
_EDGE = 1e-5
# erfinv of uniform draws is a normal one times this.
_SHRUNK = Number(1 / math.sqrt(2), literal=True)


def applied(operator: str, inputs: tuple[Law | Number, ...]) -> Law:
    """What an operator makes of laws, element by element."""
    first, *others = inputs
    if isinstance(first, Patched) or any(isinstance(one, Patched) for one in others):
        return Other(operator)
    if any(isinstance(one, Unset | Other) for one in inputs):
        return next(one for one in inputs if isinstance(one, Unset | Other))
    if not any(is_drawn(one) for one in inputs):
        parts = [_number(one) for one in inputs]
        known = (
            operator in ELEMENTWISE
            and len({id(one) for one in parts if not isinstance(one, Number)}) == 1
        )
        plain = known and all(isinstance(one, Number | Sequence | Formula) for one in parts)
        return Formula(operator, tuple(parts)) if plain else Computed()
    numbers = [_number(one) for one in others]
    if operator in ("mul", "add") and isinstance(_number(first), Number) and len(inputs) == 2:
        return applied(operator, (inputs[1], inputs[0]))
    if isinstance(first, Draw) and len(numbers) == 1 and isinstance(numbers[0], Number):
        found = _affine(operator, first, numbers[0])
        if found is not None:
            return found
    if isinstance(first, Draw) and operator == "neg":
        return _affine("mul", first, Number(-1.0, literal=True)) or Other(operator)
    if isinstance(first, Draw) and operator == "erfinv" and first.kind == "uniform":
        edges = [_erfinv(one.value) for one in (first.first, first.second)]
        plain = first.scale.value == 1 and first.shift.value == 0
        if plain and edges[0] < edges[1]:
            low, high = (Number(math.sqrt(2) * one) for one in edges)
            return Draw("truncated", low, high, _SHRUNK, serial=first.serial)
    if operator == "clamp" and isinstance(first, Draw) and first.kind == "truncated":
        # The end of torch's truncated normal: it takes away what rounding left outside.
        ends = [_bound(first, edge.value) for edge in (first.first, first.second)]
        limits = [one.value if isinstance(one, Number) else math.nan for one in numbers]
        near = [
            abs(limit - edge) <= _EDGE * max(1.0, abs(edge)) or math.isinf(edge)
            for limit, edge in zip(limits, ends, strict=False)
        ]
        if len(near) == 2 and all(near):
            return first
    if operator not in ELEMENTWISE or any(isinstance(one, Computed) for one in inputs):
        return Other(operator)
    return Formula(operator, tuple(_number(one) for one in inputs))


def _number(law: Law | Number) -> Law | Number:
    return law.value if isinstance(law, Constant) else law


def _bound(draw: Draw, edge: float) -> float:
    return edge * draw.scale.value + draw.shift.value


def _erfinv(value: float) -> float:
    import torch

    return float(torch.erfinv(torch.tensor(value, dtype=torch.float64)))


def _affine(operator: str, draw: Draw, by: Number) -> Draw | None:
    """A draw times a number, or with a number added."""
    match operator:
        case "mul" if draw.kind == "truncated" and draw.scale == _SHRUNK:
            scale, shift = _without_root(by), product(draw.shift, by)
        case "mul":
            scale, shift = product(draw.scale, by), product(draw.shift, by)
        case "div":
            if not by.value:
                return None
            scale, shift = quotient(draw.scale, by), quotient(draw.shift, by)
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
    for one, other in ((left, right), (right, left)):
        if one.value == 1 and one.literal:
            return other
        if one.value == 0 and one.literal:
            return one
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
    for one, other in ((left, right), (right, left)):
        if one.value == 0 and one.literal:
            return other
    return _joined(left.value + right.value, left, ast.Add(), right)


def _joined(value: float, left: Number, operator: ast.operator, right: Number) -> Number:
    literal = left.literal and right.literal
    if left.origin is None or right.origin is None:
        sides = [
            ast.Constant(one.value) if one.origin is None and one.literal else one.origin
            for one in (left, right)
        ]
        if literal or sides[0] is None or sides[1] is None:
            return Number(value, None, literal)
        return Number(value, ast.BinOp(sides[0], operator, sides[1]))
    return Number(value, ast.BinOp(left.origin, operator, right.origin), literal)
