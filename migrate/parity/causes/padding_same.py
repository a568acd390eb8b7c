"""SAME padding, or another padding, of a convolution or pooling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_POOLS = ("max_pool1d", "max_pool2d", "max_pool3d")


def _truth() -> nn.Module:
    return nn.Conv2d(3, 8, 3, stride=2, padding=1)


class _Faulty(nn.Conv2d):
    def forward(self, x: Any) -> Any:  # what padding="SAME" is for an even size
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, stride=2)


class PaddingSame(Pattern):
    """SAME padding pads otherwise than torch's numbers.

    **What it is.** With a stride of 2 and an even size, a kernel of 3 and `padding="SAME"` (Flax's
    default) pads nothing before and one after; torch's `padding=1` pads one on either side. The shapes
    are equal, the windows lie one pixel apart.

    **What to do.** Give Flax the numbers: `padding=((1, 1), (1, 1))`; or pad by `F.pad` in torch, if the
    weights come from TensorFlow or JAX.
    """

    name = "padding-same"
    rank = 0
    examples = (
        Example(
            _truth,
            lambda twin: loaded(_Faulty(3, 8, 3), twin),
            normal(2, 3, 8, 8),
            "pads as SAME does",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield SAME, and paddings before and after exchanged."""
        names = (*_CONVOLUTIONS, *_POOLS)
        for where, change in scene.replaced(
            lambda: dict.fromkeys(names, partial(_padded, after=True))
        ):
            yield Variant(f"{{side}} pads as SAME does, the truth by numbers{where}", change)
        for where, change in scene.replaced(
            lambda: dict.fromkeys(names, partial(_padded, after=False))
        ):
            yield Variant(f"{{side}} pads as SAME_LOWER does, the truth by numbers{where}", change)
        for where, change in scene.replaced(lambda: {"pad": _exchanged}):
            yield Variant(f"{{side}} pads before what the truth pads after{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that one has SAME and a stride."""
        stride = truth.get("stride", 1)
        strided = any(
            one != 1 for one in (stride if isinstance(stride, list | tuple) else [stride])
        )
        same = (
            str(side.get("padding")).upper() == "SAME"
            and str(truth.get("padding")).upper() != "SAME"
        )
        return (
            f"{{side}} pads as SAME does, the truth by {truth.get('padding')}"
            if same and strided
            else ""
        )


def _padded(call: FunctionCall, *, after: bool) -> Any:
    pool = call.name in _POOLS
    x = call.args[0]
    axes = int(call.name[-2])
    size = _each(call.get(1, "kernel_size"), axes) if pool else call.args[1].shape[2:]
    stride = call.get(2 if pool else 3, "stride", 1)
    stride = size if stride is None or stride == () else _each(stride, axes)
    dilation = _each(call.get(4 if pool else 5, "dilation", 1), axes)
    pads: list[int] = []
    for length, k, s, d in zip(x.shape[-axes:], size, stride, dilation, strict=True):
        total = max((-(-length // s) - 1) * s + (k - 1) * d + 1 - length, 0)
        low = total // 2 if after else total - total // 2
        pads[:0] = (low, total - low)
    x = F.pad(x, pads, value=float("-inf") if pool else 0.0)
    return call.but(0, "input", x).but(3 if pool else 4, "padding", 0).run()


def _each(value: Any, axes: int) -> tuple[int, ...]:
    return (
        tuple(value) * (axes if len(value) == 1 else 1)
        if isinstance(value, tuple | list)
        else (value,) * axes
    )


def _exchanged(call: FunctionCall) -> Any:
    pads = list(call.get(1, "pad"))
    return call.but(1, "pad", [pads[n ^ 1] for n in range(len(pads))]).run()
