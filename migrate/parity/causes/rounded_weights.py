"""Weights that went through 16 bits."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.rounding import rounded_to
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.Linear(16, 16)


def _faulty(twin: nn.Module) -> nn.Module:
    return twin.bfloat16().double()


class RoundedWeights(Pattern):
    """Weights that went through 16 bits.

    **What it is.** The checkpoint was saved in bfloat16 or float16, or loaded with `dtype=bfloat16` and
    cast up again: the weights are rounded, all else is float32. Relative L2 of 1.7e-3 in each layer.

    **What to do.** Convert the weights in their own dtype; compare both sides with the same file.
    """

    name = "rounded-weights"
    rank = 0
    examples = (Example(_truth, _faulty, normal(4, 16), "rounded to bfloat16"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all weights of the layer rounded."""
        for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            name = str(dtype).removeprefix("torch.")
            if next(iter(scene.weights(_any)), None) is not None:
                yield Variant(
                    f"the weights of {{side}} are rounded to {name}", partial(_all, scene, dtype)
                )


def _any(_module: nn.Module, _name: str, tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point()


def _all(scene: Scene, dtype: torch.dtype) -> Any:
    return several(
        weight(part.module, name, partial(rounded_to, dtype=dtype))
        for part, name in scene.weights(_any)
    )
