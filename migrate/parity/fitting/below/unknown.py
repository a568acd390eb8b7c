"""Values that are made of parameters alone, before it is known what these are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate.parity.sides.jax.wide import bound

Array = np.ndarray[Any, Any]

# What gives elements of its first operand in other places; the others say where.
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
# What computes each element of its result from those at its place alone.
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
class Unknown:
    """Elements of parameters, in some arrangement, each times a number and another one added.

    Attributes:
        where: the number of each element among those of all parameters.
        factor, offset: of all.
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
    """Values computed of parameters and numbers, element by element: a scale over √(variance + ε).

    Attributes:
        equation: that computes them.
        args: of what.
    """

    equation: Any
    args: tuple[Any, ...]

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """The parameters in it."""
        return tuple({id(one): one for one in self._leaves()}.values())

    @property
    def where(self) -> Array:
        """The elements of the first parameter in it, as they lie in what is computed."""
        first = next(one for one in self.args if isinstance(one, Unknown | Computed))
        if self.equation.primitive.name not in _REARRANGING:
            return first.where
        return np.asarray(bound(self.equation, [first.where, *self.args[1:]])[0])

    def _leaves(self) -> Iterator[Unknown]:
        for one in self.args:
            if isinstance(one, Computed):
                yield from one._leaves()
            elif isinstance(one, Unknown):
                yield one

    def value(self, of: Callable[[Unknown], Any], run: Callable[[Any, list[Any]], Any]) -> Any:
        """What it is where the parameters are these.

        Args:
            of: gives a parameter's values.
            run: gives the results of an equation.
        """
        args = [
            one.value(of, run)
            if isinstance(one, Computed)
            else of(one)
            if isinstance(one, Unknown)
            else one
            for one in self.args
        ]
        return run(self.equation, args)[0]


def computed(equation: Any, args: Sequence[Any]) -> Computed | None:
    """What an equation computes of parameters and numbers alone; None where it does more."""
    name = equation.primitive.name
    first, *others = args
    moved = isinstance(first, Computed) and name in _REARRANGING | _SAME
    if moved and not any(isinstance(one, Unknown | Computed) for one in others):
        return Computed(equation, tuple(args))
    if name not in _BY_ELEMENT:
        return None
    known = [np.asarray(one) for one in args if not isinstance(one, Unknown | Computed)]
    if any(one.size and (one != one.flat[0]).any() for one in known):
        return None
    return Computed(equation, tuple(args))


def rearranged(equation: Any, args: Sequence[Any]) -> list[Unknown] | None:
    """What an equation makes of parameters where it computes nothing else with them; None where it does."""
    name = equation.primitive.name
    if any(isinstance(one, Computed) for one in args):
        return None
    first, *others = args
    if name in _SAME and isinstance(first, Unknown):
        return [first]
    unknown = [one for one in args if isinstance(one, Unknown)]
    if name == "concatenate" and len(unknown) == len(args):
        if len({(one.factor, one.offset) for one in unknown}) > 1:
            return None
        joined = np.concatenate([one.where for one in unknown], equation.params["dimension"])
        return [replace(unknown[0], where=joined)]
    if name in _REARRANGING and isinstance(first, Unknown) and len(unknown) == 1:
        made = bound(equation, [np.asarray(first.where), *others])
        return [replace(first, where=np.asarray(one)) for one in made]
    return _affine(name, args)


def _affine(name: str, args: Sequence[Any]) -> list[Unknown] | None:
    if name == "neg" and isinstance(args[0], Unknown):
        one = args[0]
        return [replace(one, factor=-one.factor, offset=-one.offset)]
    if name not in ("mul", "add", "sub", "div") or len(args) != 2:
        return None
    left, right = args
    one, other = (left, right) if isinstance(left, Unknown) else (right, left)
    if isinstance(other, Unknown) or (name == "div" and one is right):
        return None
    values = np.asarray(other, np.float64)
    if not values.size or not (values == values.flat[0]).all():
        return None
    number = float(values.flat[0])
    where = np.broadcast_to(one.where, np.broadcast_shapes(one.where.shape, values.shape))
    if name == "mul":
        return [Unknown(where, one.factor * number, one.offset * number)]
    if name == "div":
        return [Unknown(where, one.factor / number, one.offset / number)] if number else None
    if name == "add":
        return [Unknown(where, one.factor, one.offset + number)]
    sign = 1.0 if one is left else -1.0
    return [Unknown(where, sign * one.factor, sign * one.offset - sign * number)]
