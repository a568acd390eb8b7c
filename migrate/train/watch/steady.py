"""Values that a port has as constants: a program is right only while the script keeps them."""

from __future__ import annotations

import copy
import enum
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.train.watch.values import plain

_MOST_ELEMENTS = 1 << 16
# What torch itself keeps in a module: parameters, children, hooks.
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_SCALARS = (
    int | float | complex | str | bytes | None | np.generic | torch.dtype | torch.device | enum.Enum
)


class Steady:
    """Modes, frozen parameters and constants of a step, as they are now.

    Args:
        step: the step.
        objects: further objects that its statements name: trainers.
        variables: global variables of the script.
        attributes: names of attributes that the code of the loss reads.
        names: names of global variables that functions of the loss read.
        constants: everything else that the statements name: numbers, settings.
    """

    def __init__(
        self,
        step: nn.Module,
        objects: Mapping[str, Any],
        variables: Mapping[str, Any],
        attributes: Collection[str],
        names: Collection[str],
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        self._step, self._held = step, {**objects, **(constants or {})}
        self._constants = frozenset(constants or ())
        self._read, self._names = frozenset(attributes), frozenset(names)
        self._values = dict(self._now(variables, self._held))

    def change(self, variables: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> str:
        """Describe the first value that is another one now; "" if there is none.

        Args:
            variables: global variables of the script.
            values: values of the names of the statements; those that are missing are as they were.
        """
        now = dict(self._now(variables, {**self._held, **(values or {})}))
        for name in dict.fromkeys((*self._values, *now)):
            if name not in now:
                return f"{name} has a value in the first step and none in a later one"
            if name not in self._values:
                return f"{name} has no value in the first step and one in a later one"
            before, value = self._values[name], now[name]
            if not _equal(before, value):
                if isinstance(before, _SCALARS) and isinstance(value, _SCALARS):
                    return f"{name} is {before!r} in the first step and {value!r} in a later one"
                return f"{name} changes"
        return ""

    def changing(self, values: Mapping[str, Any]) -> list[str]:
        """Names of the statements whose numbers are other ones now.

        Args:
            values: values of the names of the statements.
        """
        return [
            name
            for name in sorted(self._constants & set(values))
            if not _equal(self._values[name], _constant(values[name]))
            or any(
                not _equal(self._values.get(attribute), value)
                for attribute, value in self._attributes(name, values[name])
            )
        ]

    def _now(
        self, variables: Mapping[str, Any], values: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        for name, parameter in self._step.named_parameters():
            yield f"requires_grad of {name}", parameter.requires_grad
        for name, module in self._step.named_modules():
            if name:
                yield f"training of {name}", module.training
                yield from self._attributes(name, module)
        for name in self._held:
            if name in self._constants:
                yield name, _constant(values[name])
            yield from self._attributes(name, values[name])
        for name in self._names & set(variables):
            yield name, _constant(variables[name])

    def _attributes(self, owner: str, value: Any) -> Iterator[tuple[str, Any]]:
        kind = type(value).__module__
        # What a wrapper for several ranks holds says when ranks meet, not what the loss is.
        is_torch = kind.startswith("torch.nn.") and not kind.startswith("torch.nn.parallel.")
        for name, attribute in list(getattr(value, "__dict__", {}).items()):
            if isinstance(value, nn.Module) and name in OF_EVERY_MODULE:
                continue
            if is_torch or name in self._read:
                yield f"{owner}.{name}", _constant(attribute)


def _constant(value: Any) -> Any:
    """A copy of a value that a port has as a constant; of any other its kind, and a function's code."""
    if _elements(value) <= _MOST_ELEMENTS:
        return copy.deepcopy(plain(value))
    return value.__code__ if isinstance(value, FunctionType) else type(value)


def _elements(value: Any) -> float:
    """Number of elements of a scalar, an array, or a container of them; infinite for anything else."""
    if isinstance(value, nn.Parameter):
        return float("inf")
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, np.ndarray):
        return value.size if value.dtype != object else float("inf")
    if isinstance(value, _SCALARS):
        return 1
    if not isinstance(value, Mapping | tuple | list | set | frozenset):
        return float("inf")
    count: float = 1
    for item in value.values() if isinstance(value, Mapping) else value:
        count += _elements(item)
        if count > _MOST_ELEMENTS:
            break
    return count


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        same_kind = a.shape == b.shape and a.dtype == b.dtype
        return same_kind and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b or a != a)
