"""Layer of the truth, run again and again on its own inputs.

Layers inside it that have a partner return their recorded outputs. The replay thus shows what the layer
itself computes, as when a side is fed with the truth's inputs.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from converters.slow_paths import slow_paths
from migrate.parity.causes.frame.changes import attribute, several
from migrate.parity.causes.frame.functions import FunctionCall, watched
from migrate.parity.sides.torch.capture.tree import call_leaves, leaves, replaced
from migrate.parity.sides.torch.float64 import in_float64

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Spot:
    """Tensor in a replay.

    Attributes:
        layer: None for an output of the replayed layer, else the layer inside that receives the tensor.
        number: the truth's number of that call.
        path: path as in `dump.TensorRef`.
    """

    layer: str | None
    number: int
    path: str


class _Reached(Exception):  # noqa: N818 (nothing failed)
    """Raised when the wanted call begins."""


class Replay:
    """Replay of a call of a layer.

    Args:
        model: the truth's model.
        layer, number: the call.
        arguments: the model's arguments.
        forced: names of layers that return their recorded outputs.
        dtype: the side's dtype, to which arguments are rounded.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        number: int,
        arguments: Arguments,
        forced: frozenset[str],
        dtype: torch.dtype,
    ) -> None:
        self.target = model.get_submodule(layer)
        self.dtype = dtype
        self._before: Counter[str] = Counter()
        self._names = {module: name for name, module in model.named_modules()}
        self.arguments: Arguments = self._rounded(self._reach(model, number, arguments))
        self.inside = {
            name: module
            for name, module in model.named_modules()
            if name in forced
            and _below(name, layer)
            and not any(_below(name, parent) for parent in forced if _below(parent, layer))
        }
        self._given: dict[tuple[str, int], Any] = {}
        self._exchanged: dict[tuple[str, int], tuple[str, int]] = {}
        self.calls: list[FunctionCall] = []
        self.run(record=True)
        with watched(self.calls):
            self.truth = self.run()

    def _rounded(self, value: Any) -> Any:
        new = {
            path: tensor.to(self.dtype).to(tensor.dtype)
            for path, tensor in leaves(value)
            if tensor.is_floating_point()
        }
        return replaced(value, new)

    def _reach(self, model: nn.Module, number: int, arguments: Arguments) -> Arguments:
        """Return the arguments of the call, and count how often the layers were called before it."""
        reached: list[Arguments] = []

        def begins(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            name = self._names[module]
            if module is self.target and self._before[name] == number:
                reached.append((args, kwargs))
                raise _Reached
            self._before[name] += 1

        hooks = [
            module.register_forward_pre_hook(begins, with_kwargs=True, prepend=True)
            for module in self._names
        ]
        try:
            with torch.no_grad(), in_float64(), slow_paths():
                model(*arguments[0], **arguments[1])
        except _Reached:
            return reached[0]
        finally:
            for hook in hooks:
                hook.remove()
        raise LookupError(f"call {number} of {self._names[self.target]!r} was not made")

    def run(self, *, record: bool = False) -> dict[Spot, torch.Tensor]:
        """Return the outputs of the layer, and the arguments of the layers inside."""
        spots: dict[Spot, torch.Tensor] = {}
        counts: Counter[str] = Counter()

        def stands_in(name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            key = name, counts[name]
            counts[name] += 1
            for path, tensor in call_leaves(args, kwargs):
                spots[Spot(name, key[1] + self._before[name], path)] = tensor.detach().clone()
            if record:
                self._given[key] = self._rounded(real(*args, **kwargs))
            return _copied(self._given[self._exchanged.get(key, key)])

        forwards = [
            attribute(module, "forward", partial(stands_in, name, module.forward))
            for name, module in self.inside.items()
        ]
        args, kwargs = _copied(self.arguments)
        with torch.no_grad(), several(forwards), in_float64(), slow_paths():
            result = self.target(*args, **kwargs)
        for path, tensor in leaves(result):
            spots[Spot(None, 0, path)] = tensor
        return spots

    def outputs(self) -> Iterator[tuple[str, int, str, torch.Tensor]]:
        """Yield the outputs of the layers inside: name, call, path, tensor."""
        for (name, number), value in self._given.items():
            for path, tensor in leaves(value):
                yield name, number, path, tensor

    @contextmanager
    def exchanged(self, first: tuple[str, int], other: tuple[str, int]) -> Iterator[None]:
        """Exchange the outputs of two calls of layers inside."""
        self._exchanged = {first: other, other: first}
        try:
            yield
        finally:
            self._exchanged = {}

    @contextmanager
    def fed(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Iterator[None]:
        """Change the arguments by a function of path and tensor."""
        before = self.arguments
        new = {path: change(path, tensor) for path, tensor in call_leaves(*before)}
        self.arguments = replaced(before[0], new), replaced(before[1], new)
        try:
            yield
        finally:
            self.arguments = before


def _copied(value: Any) -> Any:
    """Copy with tensors and caches of its own, which a layer may overwrite."""
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError):
        return replaced(value, {path: tensor.clone() for path, tensor in leaves(value)})


def _below(name: str, other: str) -> bool:
    return name != other and (not other or name.startswith(f"{other}."))
