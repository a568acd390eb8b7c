"""The lowerings that there are, and how one is registered.

    @op("aten.rsub.Scalar", samples=(sample(real(2, 3), 2.5),))
    def rsub(x, other, alpha=1):
        return code("{other} - {x}", x=x, other=other) if alpha == 1 else …

A lowering takes the operator's arguments as torch names and orders them: tensors as `Tensor`, all else as it
is (a size that depends on the inputs is a `Size`). Where it has an argument `out`, that is what the operator
gives (`Result`, or a tuple of them). It gives an expression; of an operator with several results, one that is
a tuple. Device, layout, memory format and pinning are taken out before.

What is too long for an expression is a function of `converters/graph/ops/functions/`, called by its name: its
source comes into the port.
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
    """An operator was called in a way that has no exact equivalent in JAX; the message says which."""


@dataclass(frozen=True)
class Size:
    """A side of a tensor that depends on the inputs.

    Attributes:
        code: the expression, which may be a hole.
        hint: what it was when the model was traced.
    """

    code: ast.expr
    hint: int


@dataclass(frozen=True)
class Result:
    """What is known of a tensor before it is there.

    Attributes:
        shape: integers, and a `Size` where it depends on the inputs.
        dtype: torch's.
    """

    shape: tuple[int | Size, ...]
    dtype: torch.dtype

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)


@dataclass(frozen=True)
class Tensor(Result):
    """A tensor that an operator is given.

    Attributes:
        code: the expression that it is.
    """

    code: ast.expr = field(default_factory=lambda: ast.Constant(None))


@dataclass(frozen=True)
class Sample:
    """Arguments of an operator: a test calls torch's with them, and what the lowering writes.

    Attributes:
        arguments: a torch generator → arguments and named ones.
        tolerance: relative to the largest element.
        gradient: whether the gradients are compared too, where there are real inputs.
        values: whether the values are compared; False where torch says nothing of them (`empty`).
        why: where the tolerance is not that of rounding, or something is not compared.
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
    """A sample of these arguments; a function among them (`real(2, 3)`) is given the generator."""

    def make(generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
        made = {name: _made(one, generator) for name, one in named.items()}
        return tuple(_made(one, generator) for one in arguments), made

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


def values(*given: Any, dtype: torch.dtype | None = None) -> Callable[..., torch.Tensor]:
    """These values (a single list of lists has more axes)."""
    return lambda generator: torch.tensor(given[0] if len(given) == 1 else given, dtype=dtype)


def integers(
    *shape: int, low: int = 0, high: int = 10, dtype: torch.dtype = torch.int64
) -> Callable[..., torch.Tensor]:
    """Integers from `low` to below `high`."""
    return lambda generator: torch.randint(low, high, shape, generator=generator).to(dtype)


def truths(*shape: int) -> Callable[..., torch.Tensor]:
    """Booleans."""
    return lambda generator: torch.rand(shape, generator=generator) > 0.5


def distinct(*shape: int) -> Callable[..., torch.Tensor]:
    """Real values, none of them twice: 0, 0.25, 0.5, … shuffled."""

    def make(generator: torch.Generator) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return torch.randperm(count, generator=generator).reshape(shape) / 4 - count / 8

    return make


def _made(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_made(one, generator) for one in value)
    return value(generator) if callable(value) else value


@dataclass(frozen=True)
class Lowering:
    """What an operator is in JAX.

    Attributes:
        names: of the operators ("aten.add.Tensor").
        write: the function; see the module's docstring.
        samples: what proves it.
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


# Arguments that say where a tensor lies, not what it is.
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
        made = Lowering(names, write, samples)
        for name in names:
            if name in _REGISTERED:
                raise ValueError(f"{name} has a lowering already")
            _REGISTERED[name] = made
        return write

    return register


def refuse(*names: str, reason: str) -> None:
    """Say of operators why there cannot be a lowering."""

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
    """Name of an operator → its lowering: every file of this folder, and what users have registered."""
    _load()
    return MappingProxyType(_REGISTERED)
