"""A kernel that lies transposed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_AXES = {2: ("out", "in"), 3: ("out", "in", "width"), 4: ("out", "in", "height", "width")}


def _truth() -> nn.Module:
    return nn.Linear(12, 12)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.weight.data = twin.weight.data.T.contiguous()
    return twin


def _conv() -> nn.Module:
    return nn.Conv2d(3, 4, 5, padding=2)


def _turned(twin: nn.Module) -> nn.Module:
    twin.weight.data = twin.weight.data.transpose(2, 3).contiguous()
    return twin


class KernelTransposed(Pattern):
    """A kernel that lies transposed.

    **What it is.** torch's `Linear` keeps (out, in), Flax's `Dense` (in, out); a convolution (out, in,
    height, width) and (height, width, in, out). Where a kernel is square its shape does not tell that it
    was not turned, or turned twice, or height and width exchanged.

    **What to do.** Let `migrate weights convert` turn it: Dense `w.T`, convolutions `w.transpose(2, 3, 1,
    0)`.
    """

    name = "kernel-transposed"
    rank = 1
    examples = (
        Example(_truth, _faulty, normal(4, 12), "has the axes out and in exchanged"),
        Example(_conv, _turned, normal(2, 3, 9, 9), "has the axes height and width exchanged"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each exchange of two axes of the same size."""
        for part, name in scene.weights(lambda _module, _name, tensor: tensor.ndim in _AXES):
            tensor = getattr(part.module, name)
            names = _AXES[tensor.ndim]
            if isinstance(part.module, nn.Embedding):
                continue
            for a, b in combinations(range(tensor.ndim), 2):
                if tensor.shape[a] == tensor.shape[b] > 1:
                    yield Variant(
                        f"{name} of {part.name} has the axes {names[a]} and {names[b]} exchanged in {{side}}",
                        partial(weight, part.module, name, partial(_exchanged, a, b)),
                    )


def _exchanged(a: int, b: int, tensor: torch.Tensor) -> Any:
    return tensor.transpose(a, b)
