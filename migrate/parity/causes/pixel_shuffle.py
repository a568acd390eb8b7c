"""Depth to space in another order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.PixelShuffle(2)


class _Faulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        blocks = x.reshape(n, 2, 2, c // 4, h, w)  # the place in the block first, then the channel
        return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


class PixelShuffleOrder(Pattern):
    """Depth goes to space in another order.

    **What it is.** torch's `pixel_shuffle` takes channel c · r² + place, TensorFlow's `depth_to_space`,
    and a reshape with channels last, place · C + c.

    **What to do.** Reorder the channels of the convolution before it, or reshape as (..., C, r, r).
    """

    name = "pixel-shuffle-order"
    rank = 0
    examples = (
        Example(_truth, lambda twin: _Faulty(), normal(2, 8, 3, 3), "place before channel"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other order, both ways."""
        for name, handler in (("pixel_shuffle", _shuffled), ("pixel_unshuffle", _unshuffled)):
            for where, change in scene.replaced(partial(_only, name, handler)):
                yield Variant(f"{{side}} has place before channel in {name}{where}", change)


def _shuffled(call: FunctionCall) -> Any:
    x, square = call.args[0], call.get(1, "upscale_factor") ** 2
    return call.but(
        0, "input", x.unflatten(-3, (square, -1)).transpose(-4, -3).flatten(-4, -3)
    ).run()


def _unshuffled(call: FunctionCall) -> Any:
    square = call.get(1, "downscale_factor") ** 2
    return call.run().unflatten(-3, (-1, square)).transpose(-4, -3).flatten(-4, -3)


def _only(name: str, handler: Handler) -> Mapping[str, Handler]:
    return {name: handler}
