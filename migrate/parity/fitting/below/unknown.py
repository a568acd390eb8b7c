"""Values derived from parameters alone, before the parameters are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate.parity.sides.jax.wide import bound

Array = np.ndarray[Any, Any]

# Operations that move elements of their first operand; the other operands say where to.
_REARRANGING = frozenset(
    (
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "broadcast_in_dim",
        "slice",
        "dynamic_slice",
        "rev",
        "gather",
        "split",
    )
)
_SAME = frozenset(
    (
        "convert_element_type",
        "copy",
        "copy_p",
        "reduce_precision",
        "stop_gradient",
        "sharding_constraint",
    )
)
# Operations whose elements each depend only on the elements at their own position.
_BY_ELEMENT = frozenset(
    (
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "pow",
        "integer_pow",
        "square",
        "sqrt",
        "rsqrt",
        "exp",
        "neg",
        "abs",
    )
)


@dataclass(frozen=True)
class UnknownElements:
    """Elements of parameters, in some arrangement, times a factor plus an offset.

    Attributes:
        where: number of each element among the elements of all parameters.
        factor, offset: factor and offset of all elements.
    """

    where: Array
    factor: float = 1.0
    offset: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether these are the elements themselves."""
        return self.factor == 1.0 and self.offset == 0.0


@dataclass(frozen=True, eq=False)
class Computed:
    """Values computed from parameters and numbers by element, as a scale over √(variance + ε).

    Attributes:
        equation: equation that computes them.
        args: its arguments.
    """

    equation: Any
    args: tuple[Any, ...]

    @property
    def unknown(self) -> tuple[UnknownElements, ...]:
        """Parameters in the computation."""
        return tuple({id(leaf): leaf for leaf in self._leaves()}.values())

    @property
    def where(self) -> Array:
        """Elements of the first parameter, in the arrangement of the result."""
        first = next(
            argument for argument in self.args if isinstance(argument, UnknownElements | Computed)
        )
        if self.equation.primitive.name not in _REARRANGING:
            return first.where
        return np.asarray(bound(self.equation, [first.where, *self.args[1:]])[0])

    def _leaves(self) -> Iterator[UnknownElements]:
        for argument in self.args:
            if isinstance(argument, Computed):
                yield from argument._leaves()
            elif isinstance(argument, UnknownElements):
                yield argument

    def value(
        self, of: Callable[[UnknownElements], Any], run: Callable[[Any, list[Any]], Any]
    ) -> Any:
        """Compute the result for given parameters.

        Args:
            of: returns a parameter's values.
            run: returns the results of an equation.
        """
        args = [
            argument.value(of, run)
            if isinstance(argument, Computed)
            else of(argument)
            if isinstance(argument, UnknownElements)
            else argument
            for argument in self.args
        ]
        return run(self.equation, args)[0]


def computed(equation: Any, args: Sequence[Any]) -> Computed | None:
    """Result of an equation on parameters and numbers alone; None where it takes other values."""
    name = equation.primitive.name
    first, *others = args
    moved = isinstance(first, Computed) and name in _REARRANGING | _SAME
    if moved and not any(isinstance(argument, UnknownElements | Computed) for argument in others):
        return Computed(equation, tuple(args))
    if name not in _BY_ELEMENT:
        return None
    known = [
        np.asarray(argument)
        for argument in args
        if not isinstance(argument, UnknownElements | Computed)
    ]
    if any(array.size and (array != array.flat[0]).any() for array in known):
        return None
    return Computed(equation, tuple(args))


def rearranged(equation: Any, args: Sequence[Any]) -> list[UnknownElements] | None:
    """Rearranged parameters of an equation that computes nothing else; None where it does."""
    name = equation.primitive.name
    if any(isinstance(argument, Computed) for argument in args):
        return None
    first, *others = args
    if name in _SAME and isinstance(first, UnknownElements):
        return [first]
    unknown = [argument for argument in args if isinstance(argument, UnknownElements)]
    if name == "concatenate" and len(unknown) == len(args):
        if len({(parameter.factor, parameter.offset) for parameter in unknown}) > 1:
            return None
        joined = np.concatenate(
            [parameter.where for parameter in unknown], equation.params["dimension"]
        )
        return [replace(unknown[0], where=joined)]
    if name in _REARRANGING and isinstance(first, UnknownElements) and len(unknown) == 1:
        moved = bound(equation, [np.asarray(first.where), *others])
        return [replace(first, where=np.asarray(array)) for array in moved]
    return _affine(name, args)


def _affine(name: str, args: Sequence[Any]) -> list[UnknownElements] | None:
    if name == "neg" and isinstance(args[0], UnknownElements):
        unknown = args[0]
        return [replace(unknown, factor=-unknown.factor, offset=-unknown.offset)]
    if name not in ("mul", "add", "sub", "div") or len(args) != 2:
        return None
    left, right = args
    unknown, other = (left, right) if isinstance(left, UnknownElements) else (right, left)
    if isinstance(other, UnknownElements) or (name == "div" and unknown is right):
        return None
    values = np.asarray(other, np.float64)
    if not values.size or not (values == values.flat[0]).all():
        return None
    number = float(values.flat[0])
    where = np.broadcast_to(unknown.where, np.broadcast_shapes(unknown.where.shape, values.shape))
    if name == "mul":
        return [UnknownElements(where, unknown.factor * number, unknown.offset * number)]
    if name == "div":
        return (
            [UnknownElements(where, unknown.factor / number, unknown.offset / number)]
            if number
            else None
        )
    if name == "add":
        return [UnknownElements(where, unknown.factor, unknown.offset + number)]
    sign = 1.0 if unknown is left else -1.0
    return [UnknownElements(where, sign * unknown.factor, sign * unknown.offset - sign * number)]
