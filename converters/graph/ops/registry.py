"""Registry of lowerings.

    @op("aten.rsub.Scalar", samples=(sample(real(2, 3), 2.5),))
    def rsub(x, other, alpha=1):
        return code("{other} - {x}", x=x, other=other) if alpha == 1 else …

A lowering takes the operator's arguments as torch names and orders them: tensors as `Tensor`, all
else unchanged (a size that depends on the inputs is a `Size`). An argument `out` receives the
operator's result (`Result`, or a tuple of them). The lowering returns an expression; for an
operator with several results, the expression of a tuple. Device, layout, memory format and pinning
are removed first.

An operator that is too long for an expression is a function in `converters/graph/ops/functions/`,
called by its name: its source is copied into the port.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch


class CannotLowerError(ValueError):
    """An operator call has no exact equivalent in JAX; the message says why."""


@dataclass(frozen=True)
class Size:
    """A side of a tensor that depends on the inputs.

    Attributes:
        code: the expression, which may be a hole.
        hint: its value when the model was traced.
    """

    code: ast.expr
    hint: int


@dataclass(frozen=True)
class Result:
    """Shape and dtype of a tensor that is not computed yet.

    Attributes:
        shape: integers, and a `Size` where the side depends on the inputs.
        dtype: torch's dtype.
    """

    shape: tuple[int | Size, ...]
    dtype: torch.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


@dataclass(frozen=True)
class Tensor(Result):
    """A tensor passed to an operator.

    Attributes:
        code: its expression.
    """

    code: ast.expr = field(default_factory=lambda: ast.Constant(None))


@dataclass(frozen=True)
class Sample:
    """Arguments of an operator, with which a test compares torch's operator and the lowering.

    Attributes:
        arguments: a torch generator → positional and keyword arguments.
        tolerance: allowed error, relative to the largest element.
        gradient: whether the gradients are compared too, where there are real inputs.
        values: whether the values are compared; False where torch leaves them undefined (`empty`).
        why: reason for a tolerance above rounding, or for a comparison that is left out.
    """

    arguments: Callable[[torch.Generator], tuple[tuple[Any, ...], dict[str, Any]]]
    tolerance: float = 2e-6
    gradient: bool = True
    values: bool = True
    why: str = ""


def sample(
    *arguments: Any,
    tolerance: float = 2e-6,
    gradient: bool = True,
    values: bool = True,
    why: str = "",
    **named: Any,
) -> Sample:
    """A sample of these arguments; functions among them (`real(2, 3)`) are called with the
    generator.
    """

    def make(generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
        keywords = {name: _made(argument, generator) for name, argument in named.items()}
        return tuple(_made(argument, generator) for argument in arguments), keywords

    return Sample(make, tolerance, gradient, values, why)


def real(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[..., torch.Tensor]:
    """Standard normal values of this shape."""
    return lambda generator: torch.randn(shape, generator=generator).to(dtype)


def positive(*shape: int) -> Callable[..., torch.Tensor]:
    """Values in [0.5, 1.5)."""
    return lambda generator: torch.rand(shape, generator=generator) + 0.5


def within(low: float, high: float, *shape: int) -> Callable[..., torch.Tensor]:
    """Values in [low, high)."""
    return lambda generator: torch.rand(shape, generator=generator) * (high - low) + low


def values(*numbers: Any, dtype: torch.dtype | None = None) -> Callable[..., torch.Tensor]:
    """A tensor of the given values (a single list of lists has more axes)."""
    return lambda generator: torch.tensor(numbers[0] if len(numbers) == 1 else numbers, dtype=dtype)


def integers(
    *shape: int, low: int = 0, high: int = 10, dtype: torch.dtype = torch.int64
) -> Callable[..., torch.Tensor]:
    """Integers from `low` to below `high`."""
    return lambda generator: torch.randint(low, high, shape, generator=generator).to(dtype)


def truths(*shape: int) -> Callable[..., torch.Tensor]:
    """Booleans."""
    return lambda generator: torch.rand(shape, generator=generator) > 0.5


def distinct(*shape: int) -> Callable[..., torch.Tensor]:
    """Distinct real values: 0, 0.25, 0.5, … shuffled."""

    def make(generator: torch.Generator) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return torch.randperm(count, generator=generator).reshape(shape) / 4 - count / 8

    return make


def _made(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_made(element, generator) for element in value)
    return value(generator) if callable(value) else value


@dataclass(frozen=True)
class Lowering:
    """JAX lowering of an operator.

    Attributes:
        names: names of the operators ("aten.add.Tensor").
        write: the function; see the module's docstring.
        samples: arguments of its tests.
    """

    names: tuple[str, ...]
    write: Callable[..., ast.expr]
    samples: tuple[Sample, ...]

    def __call__(self, arguments: Any, named: Mapping[str, Any], out: Any) -> ast.expr:
        """The expression for these arguments."""
        named = {name: value for name, value in named.items() if name not in _NOWHERE}
        if "out" in signature(self.write).parameters:
            named["out"] = out
        return self.write(*arguments, **named)


# Arguments that set where a tensor lies, not its values.
_NOWHERE = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"}
_REGISTERED: dict[str, Lowering] = {}


def op(
    *names: str, samples: tuple[Sample, ...]
) -> Callable[[Callable[..., ast.expr]], Callable[..., ast.expr]]:
    """Register a lowering, for the library or for a user's own operators.

    Raises:
        ValueError: there is no sample, or one of the names is taken.
    """

    def register(write: Callable[..., ast.expr]) -> Callable[..., ast.expr]:
        if not samples:
            raise ValueError(f"the lowering {write.__name__} has no sample: nothing proves it")
        lowering = Lowering(names, write, samples)
        for name in names:
            if name in _REGISTERED:
                raise ValueError(f"{name} has a lowering already")
            _REGISTERED[name] = lowering
        return write

    return register


def refuse(*names: str, reason: str) -> None:
    """Register the reason why operators have no lowering."""

    def write(*_: Any, **__: Any) -> ast.expr:
        raise CannotLowerError(reason)

    for name in names:
        _REGISTERED.setdefault(name, Lowering(names, write, ()))


@cache
def _load() -> None:
    package = importlib.import_module("converters.graph.ops")
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(info.name)


def lowerings() -> Mapping[str, Lowering]:
    """Name of an operator → its lowering, from every file of this folder and from users."""
    _load()
    return MappingProxyType(_REGISTERED)
