"""A layer that computes in 16 bits."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.capture.torch_tree import leaves, replaced
from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.rounding import rounded_to
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.Linear(16, 16)


class _Faulty(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16())
        return y.to(x.dtype)


class LowPrecisionLayer(Pattern):
    """A layer computes in 16 bits.

    **What it is.** `dtype=jnp.bfloat16` was left in a layer from a training on TPUs, or autocast is on:
    what goes in and comes out of each of its operations is rounded.

    **What to do.** Leave `dtype` out, or set it on both sides and compare with the profile `bf16`.
    """

    name = "low-precision-layer"
    rank = 1
    examples = (Example(_truth, _Faulty, normal(4, 16), "computes in bfloat16"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the layer with its inputs, weights and results rounded, and with its results alone."""
        if scene.replay.dtype not in (torch.float32, torch.float64):
            return
        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            yield Variant(f"{{side}} computes in {name}", partial(_all, scene, dtype))
            yield Variant(f"{{side}} rounds each result to {name}", partial(_results, scene, dtype))


def _results(scene: Scene, dtype: torch.dtype) -> Any:
    return scene.every(partial(_round, dtype))


def _all(scene: Scene, dtype: torch.dtype) -> Any:
    def narrowed(_path: str, tensor: torch.Tensor) -> torch.Tensor:
        return rounded_to(tensor, dtype)

    weights = scene.weights(lambda _module, _name, tensor: tensor.is_floating_point())
    return several(
        [
            scene.replay.fed(narrowed),
            *(
                weight(part.module, name, partial(rounded_to, dtype=dtype))
                for part, name in weights
            ),
            scene.every(partial(_round, dtype)),
        ]
    )


def _round(dtype: torch.dtype, result: Any) -> Any:
    floats = {path: rounded_to(one, dtype) for path, one in leaves(result)}
    return replaced(result, floats)
