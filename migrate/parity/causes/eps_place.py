"""eps inside or outside of the root."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.norms import Moments, written_out
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x / (torch.sqrt(variance) + 1e-6))


def _layer_norm() -> nn.Module:
    return nn.LayerNorm(16, eps=1e-3)


class _Outside(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        deviation = centred.pow(2).mean(-1, keepdim=True).sqrt()
        return centred / (deviation + self.eps) * self.weight + self.bias


class EpsPlace(Pattern):
    """eps is added outside of the square root instead of inside, or the reverse.

    **What it is.** `x / (sqrt(variance) + eps)` and `x * rsqrt(variance + eps)` look alike and differ in
    quiet channels: for a variance near zero one divides by eps, the other by its root. T5 ports, the
    annotated transformer and optimizers written by hand have the first, torch's and Flax's norms the
    second.

    **What to do.** Move eps. If a checkpoint was trained with it outside, write the norm out on the other
    side too: no value of eps makes them equal.
    """

    name = "eps-place"
    rank = 0
    examples = (
        Example(_Truth, lambda twin: loaded(_Faulty(), twin), normal(4, 16, scale=0.05), "outside"),
        Example(
            _layer_norm, lambda twin: loaded(_Outside(16, eps=1e-3), twin), normal(4, 16), "outside"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield both moves, for norms of torch and for those written out."""
        outside = "{side} adds eps outside of the root, the truth inside"
        for where, change in scene.replaced(lambda: written_out(_outside)):
            yield Variant(outside + where, change)
        if scene.calls("rsqrt", "sqrt") and scene.calls("add"):
            for _, change in scene.replaced(_to_outside, each=False):
                yield Variant(outside, change)
            for _, change in scene.replaced(_to_inside, each=False):
                yield Variant("{side} adds eps inside of the root, the truth outside", change)


def _outside(moments: Moments) -> Any:
    return (moments.x - moments.mean) / (torch.sqrt(moments.variance) + moments.eps)


def _to_outside() -> Mapping[str, Handler]:
    sums: list[tuple[Any, Any, float]] = []  # (the sum, what eps was added to, eps)

    def add(call: FunctionCall) -> Any:
        total = call.run()
        if isinstance(call.get(1, "other"), float):
            sums.append((total, call.args[0], call.args[1]))
        return total

    def root(call: FunctionCall) -> Any:
        found = next((one for one in sums if one[0] is call.args[0]), None)
        if found is None:
            return call.run()
        value = torch.sqrt(found[1]) + found[2]
        return 1 / value if call.name == "rsqrt" else value

    return {"add": add, "rsqrt": root, "sqrt": root}


def _to_inside() -> Mapping[str, Handler]:
    roots: list[tuple[Any, Any]] = []

    def root(call: FunctionCall) -> Any:
        value = call.run()
        roots.append((value, call.args[0].square() if call.name == "std" else call.args[0]))
        return value

    def add(call: FunctionCall) -> Any:
        found = next((one for one in roots if one[0] is call.args[0]), None)
        if found is None or not isinstance(call.get(1, "other"), float):
            return call.run()
        return torch.sqrt(found[1] + call.args[1])

    return {"sqrt": root, "add": add}
