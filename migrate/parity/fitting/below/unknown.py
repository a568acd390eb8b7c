"""Values that are made of parameters alone, before it is known what these are."""

from __future__ import annotations

from collections.abc import Sequence
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


def rearranged(equation: Any, args: Sequence[Any]) -> list[Unknown] | None:
    """What an equation makes of parameters where it computes nothing else with them; None where it does."""
    name = equation.primitive.name
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
