"""A layer that computes in 16 bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, normal
from migrate.parity.causes.frame.rounding import rounded_to
from migrate.parity.causes.frame.scene import Scene
from migrate.parity.sides.torch.capture.tree import leaves, replaced


def _truth() -> nn.Module:
    return nn.Linear(16, 16)


class _Faulty(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16())
        return y.to(x.dtype)


class _Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(1)


class _NarrowSum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(x.shape[0], x.shape[2], dtype=torch.bfloat16)
        for part in x.square().bfloat16().chunk(7, 1):
            total = total + part.sum(1)
        return total.to(x.dtype)


class LowPrecisionLayer(Pattern):
    """A layer computes in 16 bits.

    **What it is.** `dtype=jnp.bfloat16` was left in a layer from a training on TPUs, or autocast is on:
    what goes in and comes out of each of its operations is rounded.

    **What to do.** Leave `dtype` out, or set it on both sides and compare with the profile `bf16`.
    """

    name = "low-precision-layer"
    rank = 1
    examples = (
        Example(_truth, _Faulty, normal(4, 16), "computes in bfloat16"),
        Example(_Sum, lambda twin: _NarrowSum(), normal(4, 30, 6), "in bfloat16"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the layer with all of it rounded, with its results alone, and with its sums."""
        if scene.replay.dtype not in (torch.float32, torch.float64):
            return
        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            for fused, words in ((True, ""), (False, ", and rounds before it adds a bias")):
                step = partial(_step, dtype, fused)
                yield Variant(
                    f"{{side}} computes in {name}{words}", partial(_all, scene, dtype, step)
                )
                text = f"{{side}} rounds each result to {name}{words}"
                yield Variant(text, partial(scene.every, step))
            for where, change in scene.replaced(partial(_sums, dtype, True)):
                yield Variant(f"{{side}} adds up in {name}{where}", change)
            for where, change in scene.replaced(partial(_sums, dtype, False)):
                yield Variant(f"{{side}} adds up {name} and rounds the sum{where}", change)
        yield Variant(
            "{side} computes in bfloat16, {where}",
            adjust=_on_the_grid,
            evidence="all values of {side} are numbers that bfloat16 has, {where}",
        )


def _on_the_grid(given: Array, mine: Array) -> Array | None:
    """The side's own values, if all are of bfloat16, are near to the truth's, and the truth's are not."""
    if given.shape != mine.shape or not np.isfinite(mine).all() or (mine != 0).sum() < 8:
        return None
    near = np.linalg.norm(given - mine) <= 0.05 * np.linalg.norm(given)
    return mine if near and _is_narrow(mine) and not _is_narrow(given) else None


def _is_narrow(array: Array) -> bool:
    return bool((array.astype(ml_dtypes.bfloat16).astype(np.float64) == array).all())


def _all(scene: Scene, dtype: torch.dtype, step: Handler) -> Any:
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
            scene.every(step),
        ]
    )


def _step(dtype: torch.dtype, fused: bool, call: FunctionCall) -> Any:
    """A function with its result rounded; where it is not fused a dense layer rounds its product too."""
    if not fused and call.name == "linear" and call.get(2, "bias") is not None:
        product = rounded_to(call.but(2, "bias", None).run(), dtype)
        return rounded_to(product + call.get(2, "bias"), dtype)
    result = call.run()
    return replaced(result, {path: rounded_to(one, dtype) for path, one in leaves(result)})


def _sums(dtype: torch.dtype, each: bool) -> Mapping[str, Handler]:
    """Sums and means along one axis, of rounded terms; `each`: rounded after each term too."""

    def handle(call: FunctionCall) -> Any:
        axis = call.get(1, "dim")
        axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
        if not isinstance(axis, int):
            return call.run()
        terms = rounded_to(call.args[0], dtype)
        total = terms.sum(axis, keepdim=True)
        if each:
            total = torch.zeros_like(total)
            for one in terms.split(1, axis):
                total = rounded_to(total + one, dtype)
        total = rounded_to(total, dtype)
        if call.name == "mean":
            total = rounded_to(total / terms.shape[axis], dtype)
        return total if call.get(2, "keepdim", False) else total.squeeze(axis)

    return {"sum": handle, "mean": handle}
