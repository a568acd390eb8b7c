"""A convolution without its dilation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_NAMES = ("conv1d", "conv2d", "conv3d")


def _truth() -> nn.Module:
    return nn.Conv1d(3, 4, 3, padding=2, dilation=2)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.dilation, twin.padding = (1,), (1,)
    return twin


class Dilation(Pattern):
    """A convolution without its dilation.

    **What it is.** torch's `dilation` is `kernel_dilation` of Flax's `Conv` (`input_dilation` is
    something else). With SAME padding the shape does not tell that it is missing.

    **What to do.** Give `kernel_dilation`.
    """

    name = "dilation"
    rank = 0
    examples = (Example(_truth, _faulty, normal(2, 3, 12), "has no dilation"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield convolutions without it, padded to the same size."""
        if any(_dilation(call) for call in scene.calls(*_NAMES)):
            for where, change in scene.replaced(lambda: dict.fromkeys(_NAMES, _without)):
                yield Variant(f"{{side}} has no dilation, the truth has{where}", change)


def _dilation(call: FunctionCall) -> tuple[int, ...]:
    """The dilation along each axis; empty if it is one everywhere."""
    axes, value = call.args[0].ndim - 2, call.get(5, "dilation", 1)
    each = (value,) * axes if isinstance(value, int) else tuple(value)
    return each if any(one > 1 for one in each) else ()


def _without(call: FunctionCall) -> Any:
    dilation, padding = _dilation(call), call.get(4, "padding", 0)
    if not dilation:
        return call.run()
    if not isinstance(padding, str):
        each = (padding,) * len(dilation) if isinstance(padding, int) else padding
        padding = tuple(one // by for one, by in zip(each, dilation, strict=True))
    return call.but(5, "dilation", 1).but(4, "padding", padding).run()
