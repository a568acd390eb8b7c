"""Draws of a torch model, taken from the draws of the comparison (`ground.draws`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from migrate.parity.ground.draws import Draws, Kind, order, whole

_Args = tuple[Any, ...]
_Named = Mapping[str, Any]


class ComparisonDraws(TorchDispatchMode):
    """Mode in which every operation that draws returns numbers of the comparison.

    Operations that draw in another way (poisson) use torch's own generator.

    Args:
        draws: draws of the pass.
    """

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: _Args = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        value = _VALUES.get(func.overloadpacket.__name__.rstrip("_"))
        if value is None:
            return func(*args, **kwargs)
        arguments = _named(func, args, kwargs)
        # The operation's own result shows shape, dtype and device; in place, it is the tensor to fill.
        drawn = func(*args, **kwargs)
        drawn.copy_(value(_Source(self._draws, drawn), arguments))
        return drawn


def _named(func: Any, args: _Args, kwargs: _Named) -> dict[str, Any]:
    """All arguments by name; a tensor that is filled in place still has its old values."""
    names = [argument.name for argument in func._schema.arguments]
    named = {
        argument.name: argument.default_value
        for argument in func._schema.arguments
        if argument.has_default_value()
    }
    return named | dict(zip(names, args, strict=False)) | dict(kwargs)


class _Source:
    """Draws as tensors with the shape and device of a result."""

    def __init__(self, draws: Draws, like: Any) -> None:
        self._draws, self._like = draws, like

    def __call__(self, kind: Kind, shape: Sequence[int] | None = None) -> Any:
        array = self._draws.next(kind, self._like.shape if shape is None else shape)
        return torch.from_numpy(array).to(self._like.device)

    def whole(self, low: Any, high: Any) -> Any:
        uniform = self._draws.next("integers", self._like.shape)
        return torch.from_numpy(whole(uniform, low, high)).to(self._like.device)

    def order(self) -> Any:
        uniform = self._draws.next("permutation", self._like.shape)
        return torch.from_numpy(order(uniform)).to(self._like.device)


def _normal(source: _Source, arguments: _Named) -> Any:
    return arguments.get("mean", 0.0) + arguments.get("std", 1.0) * source("normal")


def _uniform(source: _Source, arguments: _Named) -> Any:
    low, high = arguments.get("from", 0.0), arguments.get("to", 1.0)
    return low + (high - low) * source("uniform")


def _bernoulli(source: _Source, arguments: _Named) -> Any:
    return source("uniform") >= 1 - arguments.get("p", arguments["self"])


def _multinomial(source: _Source, arguments: _Named) -> Any:
    weights, count = arguments["self"], arguments["num_samples"]
    logits = weights.log()
    if not arguments["replacement"]:
        return (logits + source("gumbel", logits.shape)).topk(count, -1).indices
    shape = (*logits.shape[:-1], count, logits.shape[-1])
    return (logits.unsqueeze(-2) + source("gumbel", shape)).argmax(-1)


_VALUES: Mapping[str, Callable[[_Source, _Named], Any]] = {
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "randn": _normal,
    "randn_like": _normal,
    "normal": _normal,
    "normal_functional": _normal,
    "log_normal": lambda source, arguments: _normal(source, arguments).exp(),
    "exponential": lambda source, arguments: source("exponential") / arguments["lambd"],
    "bernoulli": _bernoulli,
    "randint": lambda source, arguments: source.whole(arguments.get("low", 0), arguments["high"]),
    "randint_like": lambda source, arguments: source.whole(
        arguments.get("low", 0), arguments["high"]
    ),
    "randperm": lambda source, arguments: source.order(),
    "multinomial": _multinomial,
}
