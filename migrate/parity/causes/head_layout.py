"""Heads by features, or features by heads."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Part, Scene

_SPLITS = ("view", "reshape", "unflatten")


def _truth() -> nn.Module:
    return nn.Linear(8, 24)  # 4 heads of 6


def _faulty(twin: nn.Module) -> nn.Module:
    for one in (twin.weight, twin.bias):
        one.data = one.data.reshape(4, 6, -1).transpose(0, 1).reshape(one.shape)
    return twin


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(8, 24), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.query(x).view(-1, 4, 6))


class _Features(_Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.query(x).view(-1, 6, 4).transpose(1, 2))


class HeadLayout(Pattern):
    """The features of the heads lie in another order.

    **What it is.** A projection has heads × size features: head by head in torch, where a kernel (in,
    heads, size) of Flax's attention was reshaped as (in, size, heads) every n-th feature is of the same
    head. The output's projection has the same on its input.

    **What to do.** Reshape to (heads, size), not (size, heads).
    """

    name = "head-layout"
    rank = 2
    examples = (
        Example(_truth, _faulty, normal(4, 8), "of 4 heads"),
        Example(
            _Heads,
            lambda twin: loaded(_Features(), twin),
            normal(4, 8),
            "splits into (features, heads)",
            layer="out",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield rows, and columns, in the other order, for all numbers of heads."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_SPLITS, _split)):
            text = (
                f"{{side}} splits into (features, heads), the truth into (heads, features){where}"
            )
            yield Variant(text, change)
        for parts in scene.groups(lambda module: isinstance(module, nn.Linear)):
            if len(parts) > 1:
                continue
            for axis, words in ((0, "output"), (1, "input")):
                count = parts[0].module.weight.shape[axis]
                for heads in (n for n in range(2, count) if count % n == 0):
                    text = f"the {words} features of {parts[0].name} lie feature by feature of {heads} heads"
                    yield Variant(f"{text} in {{side}}", partial(_reordered, parts[0], axis, heads))


def _split(call: FunctionCall) -> Any:
    """The last axis cut in two, the other way round."""
    x, result = call.args[0], call.run()
    cut = result.ndim >= 3 and x.shape[-1:] == (result.shape[-2] * result.shape[-1],)
    if not cut or result.shape[-2] == 1:
        return result
    heads, size = result.shape[-2:]
    return x.reshape(*result.shape[:-2], size, heads).transpose(-1, -2)


def _reordered(part: Part, axis: int, heads: int) -> Any:
    names = ["weight"] if axis or part.module.bias is None else ["weight", "bias"]
    return several(weight(part.module, name, partial(_moved, axis, heads)) for name in names)


def _moved(axis: int, heads: int, tensor: torch.Tensor) -> Any:
    tensor = tensor.movedim(axis, 0)
    moved = tensor.reshape(heads, tensor.shape[0] // heads, *tensor.shape[1:]).transpose(0, 1)
    return moved.reshape(tensor.shape).movedim(0, axis)
