"""RMSNorm multiplies by 1 + weight, or by weight."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class RmsOffset(Pattern):
    """The norm multiplies by 1 + weight, or by weight alone.

    **What it is.** Gemma, T5X and Keras's `RMSNormalization(rms_scaling)` keep the scale around zero and
    multiply by 1 + weight; Llama, Qwen and torch's and Flax's own `RMSNorm` keep it around one. The
    weights of one in the layer of the other give outputs near zero, or doubled.

    **What to do.** Add (or take) one from the weight when it is converted, or use the model's own norm.
    """

    name = "rms-offset"
    rank = 0
    examples = (
        Example(
            _Truth,
            lambda twin: loaded(_Faulty(), twin),
            normal(4, 16),
            "multiplies by the weight less 1",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the norm's weight with one more, and with one less."""
        for part, name in scene.weights(_is_scale):
            for added, words in ((1.0, "plus 1"), (-1.0, "less 1")):
                yield Variant(
                    f"{{side}} multiplies by the weight {words} in {part.name}",
                    partial(weight, part.module, name, partial(torch.add, other=added)),
                )


def _is_scale(_module: Any, name: str, tensor: torch.Tensor) -> bool:
    return tensor.ndim == 1 and name in ("weight", "scale", "gamma", "g")
