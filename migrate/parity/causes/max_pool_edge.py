"""Zeros instead of -inf around a max pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_NAMES = ("max_pool1d", "max_pool2d", "max_pool3d")


def _truth() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1)


def _faulty(twin: nn.Module) -> nn.Module:
    return nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(3, stride=2))


class MaxPoolEdge(Pattern):
    """Zeros are padded around a max pool.

    **What it is.** A max pool must pad -inf: padded zeros win where all of a window is negative. After a
    ReLU nobody sees it.

    **What to do.** Give the padding to the pool (`padding=1`, `padding=((1, 1), (1, 1))`) instead of
    padding before it.
    """

    name = "max-pool-edge"
    rank = 0
    examples = (
        Example(_truth, _faulty, normal(2, 3, 8, 8, mean=-1.0), "pads zeros around the max pool"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield pools of inputs that are padded by zeros."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_NAMES, _zeros)):
            yield Variant(f"{{side}} pads zeros around the max pool{where}", change)


def _zeros(call: FunctionCall) -> Any:
    axes, padding = int(call.name[-2]), call.get(3, "padding", 0)
    each = [padding] * axes if isinstance(padding, int) else list(padding)
    pads = [size for one in reversed(each) for size in (one, one)]
    return call.but(0, "input", F.pad(call.args[0], pads)).but(3, "padding", 0).run()
