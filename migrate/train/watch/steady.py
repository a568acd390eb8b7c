"""Values that a port has as constants: a program is right only while the script keeps them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

_MOST_ELEMENTS = 1 << 16


class Steady:
    """Modes, frozen parameters and numbers of a step, as they are now.

    Args:
        step: the step.
        objects: further values that its statements name: trainers, settings.
        variables: global variables of the script.
        attributes: names of attributes that the code of the loss reads.
        names: names of global variables that functions of the loss read.
    """

    def __init__(
        self,
        step: nn.Module,
        objects: Mapping[str, Any],
        variables: Mapping[str, Any],
        attributes: Collection[str],
        names: Collection[str],
    ) -> None:
        self._step, self._objects = step, dict(objects)
        self._read, self._names = frozenset(attributes), frozenset(names)
        self._values = dict(self._now(variables))

    def change(self, variables: Mapping[str, Any]) -> str:
        """Describe the first value that is another one now; "" if there is none."""
        for name, value in self._now(variables):
            before = self._values.get(name, value)
            if not _equal(before, value):
                if isinstance(value, torch.Tensor):
                    return f"{name} changes"
                return f"{name} is {before!r} in the first step and {value!r} in a later one"
        return ""

    def _now(self, variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, parameter in self._step.named_parameters():
            yield f"requires_grad of {name}", parameter.requires_grad
        for name, module in self._step.named_modules():
            if name:
                yield f"training of {name}", module.training
                yield from self._attributes(name, module)
        for name, value in self._objects.items():
            yield from self._attributes(name, value)
        for name in self._names & set(variables):
            if _is_constant(variables[name]):
                yield name, _copy(variables[name])

    def _attributes(self, owner: str, value: Any) -> Iterator[tuple[str, Any]]:
        is_torch = type(value).__module__.startswith("torch.nn.")
        for name, attribute in list(getattr(value, "__dict__", {}).items()):
            if name == "training" or not (is_torch or name in self._read):
                continue
            if _is_constant(attribute):
                yield f"{owner}.{name}", _copy(attribute)


def _is_constant(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not isinstance(value, nn.Parameter) and value.numel() <= _MOST_ELEMENTS
    return isinstance(value, int | float | str)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return bool(type(a) is type(b) and (a == b or a != a))
