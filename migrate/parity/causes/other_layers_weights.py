"""The weights of another layer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_MOST = 64


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _faulty(twin: nn.Module) -> nn.Module:
    first, second, third = twin.layers
    twin.layers = nn.ModuleList([third, second, first])
    return twin


class OtherLayersWeights(Pattern):
    """A layer has the weights of another one.

    **What it is.** Blocks were stacked in another order (for `nn.scan`), sorted by name ("10" before
    "2"), or two names of a checkpoint were taken for each other (gate and up, query and key).

    **What to do.** Correct the names; sort numbers as numbers.
    """

    name = "other-layers-weights"
    rank = 1
    examples = (
        Example(
            _Truth, _faulty, normal(4, 8), "layers.0 has the weights of layers.2", layer="layers.0"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the weights of every module of the same kind and sizes."""
        for part in scene.parts:
            own = dict(part.module.named_parameters(recurse=False))
            if not own:
                continue
            for name, other in list(_alike(scene.model, part.module))[:_MOST]:
                change = partial(_with, part.module, other, tuple(own))
                yield Variant(f"{part.name} has the weights of {name} in {{side}}", change)


def _alike(model: nn.Module, module: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    sizes = {name: tensor.shape for name, tensor in module.named_parameters(recurse=False)}
    for name, other in model.named_modules():
        found = {key: one.shape for key, one in other.named_parameters(recurse=False)}
        if other is not module and type(other) is type(module) and found == sizes:
            yield name, other


def _with(module: nn.Module, other: nn.Module, names: tuple[str, ...]) -> Any:
    return several(weight(module, name, partial(_taken, other, name)) for name in names)


def _taken(other: nn.Module, name: str, _tensor: torch.Tensor) -> torch.Tensor:
    return getattr(other, name).data
