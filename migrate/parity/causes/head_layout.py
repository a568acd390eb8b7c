"""Heads by features, or features by heads."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Part, Scene


def _truth() -> nn.Module:
    return nn.Linear(8, 24)  # 4 heads of 6


def _faulty(twin: nn.Module) -> nn.Module:
    for one in (twin.weight, twin.bias):
        one.data = one.data.reshape(4, 6, -1).transpose(0, 1).reshape(one.shape)
    return twin


class HeadLayout(Pattern):
    """The features of the heads lie in another order.

    **What it is.** A projection has heads × size features: head by head in torch, where a kernel (in,
    heads, size) of Flax's attention was reshaped as (in, size, heads) every n-th feature is of the same
    head. The output's projection has the same on its input.

    **What to do.** Reshape to (heads, size), not (size, heads).
    """

    name = "head-layout"
    rank = 2
    examples = (Example(_truth, _faulty, normal(4, 8), "of 4 heads"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield rows, and columns, in the other order, for all numbers of heads."""
        for parts in scene.groups(lambda module: isinstance(module, nn.Linear)):
            if len(parts) > 1:
                continue
            for axis, words in ((0, "output"), (1, "input")):
                count = parts[0].module.weight.shape[axis]
                for heads in (n for n in range(2, count) if count % n == 0):
                    text = f"the {words} features of {parts[0].name} lie feature by feature of {heads} heads"
                    yield Variant(f"{text} in {{side}}", partial(_reordered, parts[0], axis, heads))


def _reordered(part: Part, axis: int, heads: int) -> Any:
    names = ["weight"] if axis or part.module.bias is None else ["weight", "bias"]
    return several(weight(part.module, name, partial(_moved, axis, heads)) for name in names)


def _moved(axis: int, heads: int, tensor: torch.Tensor) -> Any:
    tensor = tensor.movedim(axis, 0)
    moved = tensor.reshape(heads, tensor.shape[0] // heads, *tensor.shape[1:]).transpose(0, 1)
    return moved.reshape(tensor.shape).movedim(0, axis)
