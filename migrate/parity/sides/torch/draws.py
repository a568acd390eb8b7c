"""What a torch model draws, taken from the draws of the comparison (`ground.draws`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from migrate.parity.ground.draws import Draws, Kind, order, whole

_Args = tuple[Any, ...]
_Named = Mapping[str, Any]


class Drawn(TorchDispatchMode):
    """Within it every operation that draws gives numbers of the comparison.

    An operation that draws in another way (poisson) draws from torch's own generator.

    Args:
        draws: of the pass.
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
        given = _named(func, args, kwargs)
        # Its own result says the shape, the dtype and the device; in place, it is what is filled.
        made = func(*args, **kwargs)
        made.copy_(value(_Source(self._draws, made), given))
        return made


def _named(func: Any, args: _Args, kwargs: _Named) -> dict[str, Any]:
    """All arguments by name; a tensor that is filled in place as it was."""
    names = [one.name for one in func._schema.arguments]
    named = {
        one.name: one.default_value for one in func._schema.arguments if one.has_default_value()
    }
    return named | dict(zip(names, args, strict=False)) | dict(kwargs)


class _Source:
    """Draws as tensors of the shape and on the device of a result."""

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


def _normal(source: _Source, given: _Named) -> Any:
    return given.get("mean", 0.0) + given.get("std", 1.0) * source("normal")


def _uniform(source: _Source, given: _Named) -> Any:
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return low + (high - low) * source("uniform")


def _bernoulli(source: _Source, given: _Named) -> Any:
    return source("uniform") < given.get("p", given["self"])


def _multinomial(source: _Source, given: _Named) -> Any:
    weights, count = given["self"], given["num_samples"]
    logits = weights.log()
    if not given["replacement"]:
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
    "log_normal": lambda source, given: _normal(source, given).exp(),
    "exponential": lambda source, given: source("exponential") / given["lambd"],
    "bernoulli": _bernoulli,
    "randint": lambda source, given: source.whole(given.get("low", 0), given["high"]),
    "randint_like": lambda source, given: source.whole(given.get("low", 0), given["high"]),
    "randperm": lambda source, given: source.order(),
    "multinomial": _multinomial,
}
